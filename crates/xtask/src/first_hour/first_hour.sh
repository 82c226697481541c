# The first hour of a new user: what the README says, in its order, each step with its time.
set -euo pipefail

timed() {
    local label=$1 began=$SECONDS
    shift
    "$@"
    echo "== $label: $((SECONDS - began)) s"
}

# The commands of the README's blocks, but for those that are marked and those that need images.
commands() {
    awk '
        /^<!-- not run: / { marked = 1; next }
        /^```console/ { inside = 1; block = ""; next }
        /^```/ { if (inside && !marked && block !~ /--backend docker/) printf "%s", block; inside = 0; marked = 0; next }
        inside && /^\$ / { block = block substr($0, 3) "\n" }
        !inside && NF { marked = 0 }
    ' README.md
}

readme() {
    { echo 'set -eu'; commands; } > /tmp/readme.sh
    BASTIDE_HOME=$HOME/bastide-home timed "the README's blocks as $(id -un)" sh /tmp/readme.sh > /tmp/readme.out
    test -s /tmp/readme.out
    rm -f /tmp/readme.sh /tmp/readme.out
}

if [ "$(id -u)" = 0 ]; then
    timed 'clone' git clone --quiet /source.git bastide
    cd bastide
    timed 'the first command, from nothing' cargo run --release --quiet -- run --manifest examples/hello.yaml -- sh hello.sh
    if cargo run --release -- --version 2>&1 | grep Compiling; then
        echo 'the second command in a row builds again' >&2
        exit 1
    fi
    timed 'installing' cargo install --quiet --locked --path crates/cli
    bastide doctor
    readme
    useradd --create-home alice
    cp "$(command -v bastide)" /usr/local/bin/
    git clone --quiet /source.git /home/alice/bastide
    chown -R alice: /home/alice
    chmod 755 /root
    exec su alice -c "cd /home/alice/bastide && HOME=/home/alice PATH=/usr/local/bin:/usr/bin:/bin bash /first_hour.sh"
fi
readme
