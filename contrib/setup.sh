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

# install_packages LOG PACKAGE|OTHER_NAME...: installs those that are missing, and prints which.
install_packages() {
  local log=$1 unknown missing
  shift
  if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    fail "no apt-get" "this is no Debian: there is no apt-get or dpkg-query." \
      "install what corresponds to: $*; then add --no-install."
  fi
  if ! compgen -G '/var/lib/apt/lists/*_Packages*' >/dev/null && can_install; then apt "$log" update || true; fi
  mapfile -t missing < <(choose_packages "$@" 2>"$log.unknown")
  unknown=$(tr '\n' ' ' <"$log.unknown") && rm -f -- "$log.unknown"
  [[ -z $unknown ]] || tell "packages: left out, for this Debian has none: $unknown"
  if ((${#missing[@]} == 0)); then
    tell "packages: all${unknown:+ others} of $# are installed"
    return
  fi
  tell "packages: installing ${missing[*]}"
  if ! can_install; then
    fail "not root" "packages are missing, you are not root, and there is no sudo." \
      "as root: apt-get install --no-install-recommends ${missing[*]}"
  fi
  # apt's lists are fetched only if the present ones do not suffice.
  if ! apt "$log" install --yes --no-install-recommends "${missing[@]}"; then
    if ! { apt "$log" update && apt "$log" install --yes --no-install-recommends "${missing[@]}"; }; then
      tail -n 5 "$log" >&2
      fail "apt-get failed" "apt-get could not install ${missing[*]}; see $log." \
        "install them by hand, then run this again; or add --no-install."
    fi
  fi
}

can_install() { ((EUID == 0)) || command -v sudo >/dev/null; }
