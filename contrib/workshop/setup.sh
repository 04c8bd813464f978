# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash
# setup.sh - what contrib/quickstart and contrib/run-tests share: messages, and installation of packages.
# Sourced. The caller sets program (its name), top (the source folder) and follows (what a failure means).

# configure takes Bash where it finds it, and libtool with it, which Debian's /bin/sh runs in half the time.
export CONFIG_SHELL=/bin/sh

# complain TITLE WHAT_HAPPENED WHAT_TO_DO
complain() {
  # shellcheck disable=SC2154 # the caller's
  printf '[%s: %s]\nWhat happened  %s\nWhat follows   %s\nWhat to do     %s\n' \
    "$program" "$1" "$2" "$follows" "$3" >&2
}

fail() {
  complain "$@"
  exit 1
}

tell() { printf '%s: %s\n' "$program" "$*"; }

# packages_of SECTION: the names in that section of contrib/packages.
packages_of() {
  # shellcheck disable=SC2154 # the caller's
  awk -v wanted="[$1]" '/^#/ || NF == 0 { next } /^\[/ { inside = $0 == wanted; next } inside { print $1 }' \
    "$top/contrib/packages"
}

is_installed() { [[ $(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }

as_root() {
  if ((EUID == 0)); then env DEBIAN_FRONTEND=noninteractive "$@"; else sudo env DEBIAN_FRONTEND=noninteractive "$@"; fi
}

# apt LOG ARGUMENT...
apt() {
  local log=$1
  shift
  as_root apt-get -o DPkg::Lock::Timeout=300 "$@" </dev/null >>"$log" 2>&1
}

# choose_packages PACKAGE|OTHER_NAME...: for each that is missing, prints the first name that this Debian has a package
# of. What it has under no name goes to standard error.
choose_packages() {
  local names name known
  for names in "$@"; do
    known=
    for name in ${names//|/ }; do
      if is_installed "$name"; then continue 2; fi
      if [[ -z $known && -n $(apt-cache show --no-all-versions "$name" 2>/dev/null) ]]; then known=$name; fi
    done
    if [[ -n $known ]]; then echo "$known"; else echo "$names" >&2; fi
  done
}

# missing_packages PACKAGE|OTHER_NAME...: those that this Debian has and that are not installed.
missing_packages() { choose_packages "$@" 2>/dev/null; }

# tell_cost LIST PACKAGE...: says what apt-get will fetch and need for them, and adds their names, with those of what they
# need, to the file LIST, by which they can be removed again.
tell_cost() {
  local list=$1 plan
  shift
  plan=$(as_root env LC_ALL=C apt-get -o DPkg::Lock::Timeout=300 --assume-no --no-install-recommends install "$@" </dev/null 2>/dev/null) || true
  sed -n '/^The following NEW packages/,/^[^ ]/s/^  //p' <<<"$plan" | tr -s ' ' '\n' >"$list.new"
  tell "packages: $(wc -l <"$list.new") to be installed for $*;" \
    "$(sed -n 's/^Need to get \(.*\) of archives.*/\1 to fetch/p' <<<"$plan")," \
    "$(sed -n 's/^After this operation, \(.*\) of additional disk space.*/\1 on the disk/p' <<<"$plan")"
  sort -u -o "$list" -- "$list.new" "$(if [[ -e $list ]]; then echo "$list"; else echo /dev/null; fi)"
  rm -f -- "$list.new"
}

# install_packages LOG LIST PACKAGE|OTHER_NAME...: installs those that are missing, after it has said what they cost. LIST
# is a file that keeps the names of all that was ever installed so.
install_packages() {
  local log=$1 list=$2 unknown missing
  shift 2
  if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    fail "no apt-get" "this is no Debian: there is no apt-get or dpkg-query." \
      "install what corresponds to: $* (to build, on Fedora: dnf install $(packages_of fedora | tr '\n' ' ')); then add --no-install."
  fi
  if ! compgen -G '/var/lib/apt/lists/*_Packages*' >/dev/null && can_install; then apt "$log" update || true; fi
  mapfile -t missing < <(choose_packages "$@" 2>"$log.unknown")
  unknown=$(tr '\n' ' ' <"$log.unknown") && rm -f -- "$log.unknown"
  [[ -z $unknown ]] || tell "packages: left out, for this Debian has none: $unknown"
  if ((${#missing[@]} == 0)); then
    tell "packages: all${unknown:+ others} of $# are installed"
    return
  fi
  if ! can_install; then
    fail "not root" "packages are missing, you are not root, and there is no sudo." \
      "as root: apt-get install --no-install-recommends ${missing[*]}"
  fi
  tell_cost "$list" "${missing[@]}"
  # apt's lists are fetched only if the present ones do not suffice.
  if ! apt "$log" install --yes --no-install-recommends "${missing[@]}"; then
    if ! { apt "$log" update && apt "$log" install --yes --no-install-recommends "${missing[@]}"; }; then
      tail -n 5 "$log" >&2
      fail "apt-get failed" "apt-get could not install ${missing[*]}; see $log." \
        "install them by hand, then run this again; or add --no-install."
    fi
  fi
}

# tell_what_is_left LIST FOLDER...: what stays behind, and how it goes away.
tell_what_is_left() {
  local list=$1
  shift
  tell "left behind: $(du -sm -c -- "$@" 2>/dev/null | tail -n 1 | cut -f 1) MiB in $*; rm -r removes it"
  [[ ! -s $list ]] || tell "  and $(wc -l <"$list") packages: apt-get purge \$(cat $list)"
}

can_install() { ((EUID == 0)) || command -v sudo >/dev/null; }
