# The first hour of a new user: what the README says, in its order, each step with its time.
set -euo pipefail

# What a command takes is said where its output does not go.
timed() {
    local label=$1 began=$SECONDS
    shift
    "$@" || return
    echo "== $label: $((SECONDS - began)) s" >&2
}

# The commands of the README's blocks that have this mark; of those without one where nothing is given, but for those that need
# images.
commands() {
    awk -v wanted="${1-}" '
        /^<!-- (not )?run[ :]/ { mark = $0; next }
        /^```console/ { inside = 1; block = ""; next }
        /^```/ {
            is_wanted = wanted == "" ? mark == "" && block !~ /--backend docker/ : index(mark, wanted)
            if (inside && is_wanted) printf "%s", block
            inside = 0; mark = ""; next
        }
        inside && /^\$ / { block = block substr($0, 3) "\n" }
        !inside && NF { mark = "" }
    ' README.md
}

# Runs them in one shell, as somebody would who types them.
readme() {
    local label=$1 script
    script=$(commands "${2-}")
    test -n "$script"
    timed "$label, as $(id -un)" sh -euc "$script" > /tmp/readme.out || {
        cat /tmp/readme.out
        exit 1
    }
    test -s /tmp/readme.out
    rm /tmp/readme.out
}

# What the README says stays, and where.
home_is_where_it_is_said_to_be() {
    test -d ~/.local/share/bastide/audit
    test -d ~/.local/share/bastide/snapshots
}

if [ "$(id -u)" = 0 ]; then
    timed 'clone' git clone --quiet /source.git bastide
    cd bastide
    readme 'installing, from nothing' 'builds everything'
    timed 'the same without installing' \
        cargo run --release --quiet -- run --manifest examples/hello.yaml -- sh hello.sh
    if cargo run --release -- --version 2>&1 | grep Compiling; then
        echo 'the second command in a row builds again' >&2
        exit 1
    fi
    readme "the README's blocks"
    home_is_where_it_is_said_to_be
    useradd --create-home --shell /bin/bash alice
    cp "$(command -v bastide)" /usr/local/bin/
    git clone --quiet /source.git /home/alice/bastide
    chown -R alice: /home/alice
    su alice -c "cd /home/alice/bastide && HOME=/home/alice PATH=/usr/local/bin:/usr/bin:/bin bash /first_hour.sh"
    rm /usr/local/bin/bastide
    cargo uninstall --quiet bastide-cli
    hash -r
    if command -v bastide; then
        echo 'it is still there after it was uninstalled' >&2
        exit 1
    fi
    home_is_where_it_is_said_to_be
else
    # The best there is: nothing here keeps an ordinary user from having namespaces.
    bastide doctor | grep '^auto  *namespaces$'
    readme "the README's blocks"
    home_is_where_it_is_said_to_be
fi
