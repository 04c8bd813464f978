# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash
# pinrail.bash - completion of pinrail_info, pinrail_perf, pinrail_advise, pinrail_top, pinrail_conform and pinrun in bash. The tools themselves list
# options, components and parameters.

# _pinrail_listed FRAMEWORK: prints the names of its components; "all": of every framework.
_pinrail_listed() {
  "$1" --parsable 2>/dev/null | sed -n "s/^mca:$2:\([^:]*\):status:.*/\1/p" | sort -u
}

# _pinrail_words TOOL PREVIOUS BEFORE: prints what may follow these two words.
_pinrail_words() {
  local info=${1%"${1##*/}"}pinrail_info
  case $2 in
    --mca) "$info" --all --parsable 2>/dev/null | sed -n 's/^mca:.*:full_name://p' ;;
    --param) "$info" --parsable 2>/dev/null | sed -n 's/^mca:\([^:]*\):.*:status:.*/\1/p' | sort -u; echo mca all ;;
    --registrar) _pinrail_listed "$info" registrar ;;
    --pool) _pinrail_listed "$info" mpool ;;
    --level) echo 1 2 3 4 5 6 7 8 9 ;;
    *)
      case $3 in
        --param) _pinrail_listed "$info" "${2/#all/[^:]*}"; echo base all ;;
        --mca) ;;
        *)
          "$1" --help 2>/dev/null | grep -e '^  -[-A-Za-z]' | grep -o -e '--[a-z][a-z]*' | sort -u
          [[ $1 != *pinrail_conform || $2 != "$1" ]] || echo mpool rcache registrar monitor
          ;;
      esac
      ;;
  esac
}

# _pinrail_command: prints where the command of pinrun begins, if it stands before the word.
_pinrail_command() {
  local at=1
  while ((at < COMP_CWORD)); do
    case ${COMP_WORDS[at]} in
      --mca) ((at += 3)) ;;
      --record) ((at += 2)) ;;
      -*) ((at += 1)) ;;
      *) echo "$at" && return ;;
    esac
  done
}

# _pinrun WORD PREVIOUS BEFORE: completes pinrun's command, or its command's words. False: an option is to be completed.
_pinrun() {
  local at
  at=$(_pinrail_command)
  if [[ -n $at ]]; then
    ! declare -F _command_offset >/dev/null || _command_offset "$at"
  elif [[ $1 != -* && $2 != --mca && $2 != --record && $3 != --mca ]]; then
    mapfile -t COMPREPLY < <(compgen -c -- "$1")
  else
    return 1
  fi
}

_pinrail() {
  local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} before=
  ((COMP_CWORD < 2)) || before=${COMP_WORDS[COMP_CWORD - 2]}
  COMPREPLY=()
  if [[ ${COMP_WORDS[0]} == *pinrun ]] && _pinrun "$word" "$previous" "$before"; then return; fi
  if [[ $previous == --trace || $previous == --record || $previous == --html ]]; then
    mapfile -t COMPREPLY < <(compgen -f -- "$word")
    return
  fi
  mapfile -t COMPREPLY < <(compgen -W "$(_pinrail_words "${COMP_WORDS[0]}" "$previous" "$before")" -- "$word")
}

complete -o default -F _pinrail pinrail_info pinrail_perf pinrail_advise pinrail_top pinrail_conform pinrun
