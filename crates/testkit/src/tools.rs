//! Ordinary development runs inside. Each trial is skipped, by name, where its tool is missing.

use std::time::Duration;

use bastide::model::Manifest;
use bastide::{Command, CreateOptions, Session};

use crate::suite::{Context, Outcome, Trial, TrialError, say, skip};
use crate::trials;

const TRIALS: &[Trial] = trials![
    traces_with_strace,
    debugs_with_gdb,
    finds_races_with_the_thread_sanitizer,
    finds_leaks_with_the_leak_sanitizer,
    finds_races_in_go,
    runs_node,
    runs_a_java_machine,
    works_with_git,
    installs_with_pip,
    installs_with_npm,
    builds_with_cargo,
    runs_a_browser_without_its_own_sandbox,
    runs_a_browser_in_its_own_sandbox,
    makes_sandboxes_inside_where_asked,
];

/// Every trial of a tool.
#[must_use]
pub fn trials() -> Vec<Trial> {
    TRIALS.to_vec()
}

/// A session that finds what whoever runs the trials finds.
async fn session(context: &Context, nested: bool) -> Result<Session, TrialError> {
    let mut options = CreateOptions::default();
    options.nested_sandbox = nested;
    if let Some(path) = std::env::var_os("PATH") {
        options.env = vec![("PATH".to_owned(), path.to_string_lossy().into_owned())];
    }
    Ok(context.client().create(&Manifest::default(), options).await?)
}

/// Runs a script in a fresh session, where all of `programs` are there, and returns what it said.
async fn script(context: Context, programs: &[&str], lines: &str) -> Result<String, TrialError> {
    script_in(&context, programs, lines, false).await
}

async fn script_in(
    context: &Context,
    programs: &[&str],
    lines: &str,
    nested: bool,
) -> Result<String, TrialError> {
    let session = session(context, nested).await?;
    run_script(session, programs, lines, None).await
}

async fn run_script(
    session: Session,
    programs: &[&str],
    lines: &str,
    user: Option<&str>,
) -> Result<String, TrialError> {
    let run = |line: String| {
        let command = Command::shell(&line).timeout(Duration::from_secs(100));
        let command = user.into_iter().fold(command, |command, user| command.user(user));
        session.exec(command)
    };
    for program in programs {
        if run(format!("command -v {program}")).await?.exit.code != 0 {
            session.delete().await?;
            return Err(skip(format!("{program} is not installed")));
        }
    }
    let output = run(format!("set -e\n{lines}")).await?;
    session.delete().await?;
    let (stdout, stderr) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    match (output.exit.code, stdout.lines().find_map(|line| line.strip_prefix("SKIP "))) {
        (_, Some(reason)) => Err(skip(reason)),
        (0, None) => Ok(stdout.into_owned()),
        (code, None) => Err(format!("it ended with {code}: {stdout}{stderr}").into()),
    }
}

async fn traces_with_strace(context: Context) -> Outcome {
    let lines = "strace -f -o log sh -c 'echo traced; true'; grep -c execve log";
    let said = script(context, &["strace"], lines).await?;
    assert!(said.starts_with("traced\n"), "{said}");
    Ok(())
}

async fn debugs_with_gdb(context: Context) -> Outcome {
    let lines = "
        printf '%s' 'int deep(int n) { return n ? deep(n - 1) + 1 : 7; } int main() { return deep(3) - 10; }' > p.c
        gcc -g -O0 -o p p.c
        gdb -batch -nx -ex 'break deep if n == 0' -ex run -ex bt -ex continue ./p 2>&1";
    let said = script(context, &["gdb", "gcc"], lines).await?;
    assert!(said.contains("#3") && said.contains("exited normally"), "{said}");
    Ok(())
}

/// A program that is compiled and run with a sanitizer, which must find what is wrong with it.
async fn sanitized(context: Context, sanitizer: &str, program: &str, found: &str) -> Outcome {
    let lines = format!(
        "
        cat > p.c <<'END'
{program}
END
        gcc -g -pthread -fsanitize={sanitizer} -o p p.c 2>cc.log || {{ echo SKIP gcc has no sanitizer {sanitizer}; exit 0; }}
        ./p > log 2>&1 && code=0 || code=$?
        cat log; echo code $code"
    );
    let said = script(context, &["gcc"], &lines).await?;
    assert!(said.contains(found) && !said.contains("code 0"), "{said}");
    Ok(())
}

async fn finds_races_with_the_thread_sanitizer(context: Context) -> Outcome {
    let program = "#include <pthread.h>
int shared; void *work(void *x) { for (int i = 0; i < 1000; i++) shared++; return x; }
int main() { pthread_t a, b; pthread_create(&a, 0, work, 0); pthread_create(&b, 0, work, 0);
pthread_join(a, 0); pthread_join(b, 0); return 0; }";
    sanitized(context, "thread", program, "ThreadSanitizer: data race").await
}

async fn finds_leaks_with_the_leak_sanitizer(context: Context) -> Outcome {
    let program = "#include <stdlib.h>
int main() { volatile char *p = malloc(77); p[0] = 1; p = 0; return 0; }";
    sanitized(context, "leak", program, "LeakSanitizer: detected memory leaks").await
}

async fn finds_races_in_go(context: Context) -> Outcome {
    let lines = "
        mkdir p && cd p && cat > main.go <<'END'
package main

func main() {
	n, done := 0, make(chan bool)
	go func() { n++; done <- true }()
	n++
	<-done
	println(n)
}
END
        go mod init p 2>/dev/null
        GOFLAGS=-mod=mod GOCACHE=$PWD/cache GOTOOLCHAIN=local go run -race . > log 2>&1 || true
        cat log";
    let said = script(context, &["go", "gcc"], lines).await?;
    assert!(said.contains("WARNING: DATA RACE"), "{said}");
    Ok(())
}

async fn runs_node(context: Context) -> Outcome {
    let lines = r#"node -e '
        const http = require("http"), { Worker } = require("worker_threads");
        const server = http.createServer((_, answer) => answer.end("served"));
        server.listen(0, "127.0.0.1", () => http.get(server.address(), answer => {
            answer.on("data", data => { console.log(String(data)); server.close(); });
        }));
        new Worker("console.log(\"worked\")", { eval: true });' | sort"#;
    assert_eq!(script(context, &["node"], lines).await?, "served\nworked\n");
    Ok(())
}

async fn runs_a_java_machine(context: Context) -> Outcome {
    let lines = "
        java -Xmx64m -version 2>&1 | head -1
        if java --list-modules | grep -q ^jdk.compiler; then
            echo 'class H { public static void main(String[] a) { System.out.println(\"hello \" + 6 * 7); } }' > H.java
            java -Xmx128m H.java
        else echo hello 42; fi";
    let said = script(context, &["java"], lines).await?;
    assert!(said.contains("version") && said.ends_with("hello 42\n"), "{said}");
    Ok(())
}

async fn works_with_git(context: Context) -> Outcome {
    let lines = "
        git init -q one && cd one
        git config user.email a@b.c && git config user.name A
        echo x > file && git add file && git commit -qm first && git gc -q
        cd .. && git clone -q one two && git -C two log --format=%s";
    assert_eq!(script(context, &["git"], lines).await?, "first\n");
    Ok(())
}

async fn installs_with_pip(context: Context) -> Outcome {
    let lines = r#"
        python3 -m venv env > log 2>&1 || { echo SKIP python has no venv; exit 0; }
        python3 - <<'END'
import zipfile
with zipfile.ZipFile("thing-1-py3-none-any.whl", "w") as wheel:
    wheel.writestr("thing.py", "word = 'installed'")
    wheel.writestr("thing-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: thing\nVersion: 1\n")
    wheel.writestr("thing-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr("thing-1.dist-info/RECORD", "thing.py,,\nthing-1.dist-info/METADATA,,\nthing-1.dist-info/WHEEL,,\nthing-1.dist-info/RECORD,,\n")
END
        env/bin/pip install --quiet --no-index --disable-pip-version-check ./thing-1-py3-none-any.whl
        env/bin/python -c 'import thing; print(thing.word)'"#;
    assert_eq!(script(context, &["python3"], lines).await?, "installed\n");
    Ok(())
}

async fn installs_with_npm(context: Context) -> Outcome {
    let lines = r#"
        mkdir thing app
        echo '{"name":"thing","version":"1.0.0","main":"i.js"}' > thing/package.json
        echo 'module.exports = "installed"' > thing/i.js
        echo '{"name":"app","version":"1.0.0"}' > app/package.json
        cd app && npm install --offline --no-audit --no-fund --silent ../thing > log 2>&1 || { cat log; exit 1; }
        node -p 'require("thing")'"#;
    assert_eq!(script(context, &["npm", "node"], lines).await?, "installed\n");
    Ok(())
}

async fn builds_with_cargo(context: Context) -> Outcome {
    let lines = "
        cargo --version > log 2>&1 || { echo SKIP cargo does not run here: $(head -1 log); exit 0; }
        mkdir -p app/src && cd app
        printf '[package]\\nname = \"app\"\\nversion = \"0.1.0\"\\nedition = \"2021\"\\n' > Cargo.toml
        echo 'fn main() { println!(\"built\"); }' > src/main.rs
        CARGO_HOME=$PWD/home cargo run --quiet --offline";
    assert_eq!(script(context, &["cargo", "cc"], lines).await?, "built\n");
    Ok(())
}

const BROWSER: &str = "
    browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
    [ -n \"$browser\" ] || { echo SKIP chromium is not installed; exit 0; }
    echo '<p id=x></p><script>x.textContent = 6 * 7</script>' > page.html
    $browser --headless --disable-gpu --no-first-run --user-data-dir=$PWD/data $FLAGS --dump-dom file://$PWD/page.html";

async fn runs_a_browser_without_its_own_sandbox(context: Context) -> Outcome {
    let lines = format!("FLAGS=--no-sandbox\n{BROWSER}");
    let said = script(context, &[], &lines).await?;
    assert!(said.contains("<p id=\"x\">42</p>"), "{said}");
    Ok(())
}

async fn runs_a_browser_in_its_own_sandbox(context: Context) -> Outcome {
    // A browser refuses to sandbox root; then somebody else has to run it.
    let session = session(&context, true).await?;
    let user = (say(&session, "id -u").await? == "0\n").then_some("4242");
    let lines = format!("cd /tmp; export HOME=/tmp FLAGS=\n{BROWSER}");
    let said = run_script(session, &[], &lines, user).await?;
    assert!(said.contains("<p id=\"x\">42</p>"), "{said}");
    Ok(())
}

/// Namespaces and mounts of its own, by name only; what was closed around it stays closed.
async fn makes_sandboxes_inside_where_asked(context: Context) -> Outcome {
    let line = "unshare --user --map-root-user --mount --pid --fork sh -c 'mount -t tmpfs none /tmp && mount -t proc proc /proc && ls /proc | grep -c ^[0-9]*$'";
    let refused = script_in(&context, &["unshare"], line, false).await;
    assert!(refused.is_err(), "a namespace was made without asking: {refused:?}");
    let said = script_in(&context, &["unshare"], line, true).await?;
    assert!(said.trim().parse::<u32>()? >= 2, "{said}");
    // Read-only stays read-only, whoever one is in a namespace of one's own.
    let line = "unshare --user --map-root-user --mount sh -c 'mount -o remount,bind,rw /usr && touch /usr/canary && echo wrote; mount -o remount,rw /usr && echo remounted; true' 2>/dev/null";
    assert_eq!(script_in(&context, &["unshare"], line, true).await?, "");
    let line = "command -v bwrap >/dev/null || { echo none; exit 0; }
        bwrap --unshare-all --ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib --symlink usr/lib64 /lib64 --proc /proc --dev /dev --tmpfs /tmp sh -c 'echo inside'";
    let said = script_in(&context, &[], line, true).await?;
    assert!(["inside\n", "none\n"].contains(&said.as_str()), "{said}");
    let options = CreateOptions::default().nested_sandbox();
    let session = context.client().create(&Manifest::default(), options).await?;
    let said = session.receipt().not_enforced.iter().any(|gap| gap.starts_with("nested sandboxes"));
    assert!(said, "{:?}", session.receipt());
    Ok(session.delete().await?)
}
