# shellcheck shell=bash
# Sourced by examples/quickstart.sh and tests/run.sh: installs what is missing, and only that.
#
#   need PACKAGE PROBE WHY   PROBE is a command (`cmake`), a header (`fmt/core.h`) or a file (`/usr/..`); of several
#                            with `|` between them any one will do
#   install_needed           installs the Debian packages whose probe failed; no package manager runs when none did

needed_packages=()
needed_reasons=()

# probe_found PROBE: true when the command or the header is there.
probe_found() {
  local probe dir
  local -a probes
  IFS='|' read -r -a probes <<<"$1"
  for probe in "${probes[@]}"; do
    if [[ $probe != */* ]]; then
      if command -v "$probe" >/dev/null 2>&1; then return 0; fi
    elif [[ $probe == /* ]]; then
      if [[ -e $probe ]]; then return 0; fi
    else
      for dir in /usr/include /usr/local/include /opt/homebrew/include; do
        if [[ -e $dir/$probe ]]; then return 0; fi
      done
    fi
  done
  return 1
}

need() {
  if ! probe_found "$2"; then
    needed_packages+=("$1")
    needed_reasons+=("$3")
  fi
}

install_needed() {
  local i
  if ((${#needed_packages[@]} == 0)); then return 0; fi
  echo "Missing on this machine:"
  for i in "${!needed_packages[@]}"; do
    printf '  %-20s %s\n' "${needed_packages[i]}" "${needed_reasons[i]}"
  done
  if ! command -v apt-get >/dev/null 2>&1; then
    echo "This script installs packages with apt-get (Debian, Ubuntu), which is not here. Please install the above" >&2
    echo "with your own package manager (names may differ) and run the script again." >&2
    return 1
  fi
  local -a as_root=()
  if [[ $(id -u) != 0 ]]; then
    if ! command -v sudo >/dev/null 2>&1; then
      echo "Installing needs root. Please run as root:  apt-get install ${needed_packages[*]}" >&2
      return 1
    fi
    as_root=(sudo)
    echo "Installing them with apt-get; sudo may ask for your password."
  else
    echo "Installing them with apt-get."
  fi
  # Empty package lists are fetched first, old ones only when the installation fails with them.
  if ! compgen -G '/var/lib/apt/lists/*Packages*' >/dev/null; then run_apt update || return 1; fi
  if ! run_apt install -y --no-install-recommends "${needed_packages[@]}"; then
    run_apt update && run_apt install -y --no-install-recommends "${needed_packages[@]}" || return 1
  fi
  echo
}

# Uses as_root of install_needed. -qq keeps it short; errors still show.
run_apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive DEBCONF_NOWARNINGS=yes \
    apt-get -qq -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 "$@" </dev/null >/dev/null
}
