#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# pinrail_top shows processes of this user, names planted reasons of misses, and shows nothing of a process that ended
# or of another user's (recorder/J3, top/V1).
set -u

top=contrib/tools/pinrail_top
[ -x $top ] || { echo "SKIP: pinrail_top is not built: ncurses is missing"; exit 77; }
command -v python3 >/dev/null || { echo "SKIP: python3 is not installed"; exit 77; }
program=$PWD/test/top_subject
fails=0
expect() { # claim, command...
  local claim=$1
  shift
  "$@" || { echo "FAILED: $claim"; fails=1; }
}
work=$(mktemp -d)
trap 'kill $subject $server 2>/dev/null; rm -rf "$work"' EXIT
subject='' server=''
for option in --help --version; do
  expect "$option says that its output cannot be written" sh -c "! $top $option >/dev/full 2>'$work/err'"
done
odd=$(printf 'to"p\377')  # a quotation mark, and a byte that is no text
ln -s "$program" "$work/$odd"
"$work/$odd" > "$work/ready" & subject=$!
for _ in $(seq 1200); do [ -s "$work/ready" ] && break; sleep 0.05; done
json() { $top --json --pid $subject > "$work/json"; python3 - "$work/json" "$1" <<'PY'
import json, sys
pool = json.load(open(sys.argv[1]))["pools"][0]
sys.exit(0 if eval(sys.argv[2], {"p": pool, "r": pool["miss_reasons"]}) else print(sys.argv[2], pool) or 1)
PY
}
expect "hits are counted" json 'p["hits"] >= 1000'
expect "each planted reason is named" json 'r == {"evicted": 5, "cold": 4, "event": 3, "span": 2, "rights": 1}'
expect "evictions" json 'p["evictions"] >= 5'
expect "ranges" json 'p["costliest_ranges"][0]["misses"] >= 1'
expect "bytes and registrations" json 'p["registered_bytes"] == 4096 and p["registered_count"] == 1'
# The answer may come after the reader has gone on, and is in the file then.
answered() { for _ in $(seq 1200); do json "$1" >"$work/said" 2>&1 && return; sleep 0.05; done; cat "$work/said"; return 1; }
expect "what is held is asked for, and answered" answered 'p["held_bytes"] == 4096 and p["held_count"] == 1'
expect "and what is idle or dead" json 'p["idle_bytes"] == 0 and p["dead_bytes"] == 0 and p["dead_count"] == 0'
expect "a table" sh -c "$top --once --interval 50 --pid $subject | grep -q 'evicted 33.3 %, cold 26.7 %'"
expect "all processes" sh -c "$top --once --interval 50 | grep -q '^ *$subject '"
$top --listen 0 --pid $subject > "$work/url" & server=$!
for _ in $(seq 1200); do [ -s "$work/url" ] && break; sleep 0.05; done
python3 -c 'import sys, urllib.request; sys.stdout.buffer.write(urllib.request.urlopen(sys.argv[1], timeout=60).read())' \
  "$(cat "$work/url")" > "$work/page"
expect "the name of a process is text there" grep -q 'command="to\\"p?"' "$work/page"
expect "a page for Prometheus" grep -q '^pinrail_misses_total{.*reason="evicted"} 5$' "$work/page"
# The longest request line, and a client that reads late with little room, so that much is unsent when top is done.
cat > "$work/client.py" <<'PY'
import socket, sys, time
client = socket.socket()
client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
client.settimeout(60)
client.connect(("127.0.0.1", int(sys.argv[1].rsplit(":", 1)[1].split("/")[0])))
client.sendall(b"GET /metrics HTTP/1.1\r\nAuthorization: " + b"a" * 6000 + b"\r\n\r\n")
time.sleep(0.5)
head, body = b"".join(iter(lambda: client.recv(65536), b"")).split(b"\r\n\r\n", 1)
sys.exit(f"Content-Length: {len(body)}".encode() not in head)
PY
expect "a page that is read late comes whole" python3 "$work/client.py" "$(cat "$work/url")"
kill $server; wait $server 2>/dev/null
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
$top --listen "$port" --pid $subject >&- 2>"$work/err" & server=$!
served() { python3 "$work/client.py" ":$port" 2>/dev/null; }
comes() { for _ in $(seq 100); do served && return; kill -0 $server 2>/dev/null || return; sleep 0.1; done; return 1; }
expect "a page without a standard output" comes
cat > "$work/hang_up.py" <<'PY'
import os, pty, signal, sys, time
child, terminal = pty.fork()
if child == 0:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.environ["TERM"] = "xterm"
    os.execv(sys.argv[1], sys.argv[1:])
os.read(terminal, 1)
os.close(terminal)
for _ in range(300):
    if os.waitpid(child, os.WNOHANG)[0] != 0: sys.exit(0)
    time.sleep(0.1)
os.kill(child, signal.SIGKILL)
sys.exit(1)
PY
expect "the end of the terminal is its end" python3 "$work/hang_up.py" $top --interval 50
file=$(find /proc/$subject/fd -lname '*memfd:pinrail-figures*' | head -n 1)
expect "the file can be read" sh -c "head -c 8 '$file' >/dev/null"
expect "the file cannot be written by others" sh -c "! (printf x > '$file') 2>/dev/null"
if [ "$(id -u)" = 0 ] && setpriv --reuid 65534 --clear-groups true 2>/dev/null; then
  expect "another user sees nothing" sh -c "! setpriv --reuid 65534 --clear-groups head -c 8 '$file' >/dev/null 2>&1"
fi
kill -9 $subject; wait $subject 2>/dev/null
expect "a process without a pool is named" sh -c "$top --once --interval 50 --pid 1 2>&1 >/dev/null | grep -q 'process 1 has no pool'"
expect "a process that crashed leaves nothing" sh -c "! $top --once --interval 50 --pid $subject | grep -q '^ *$subject '"
exit $fails
