//! Programs that fetch by TLS, as users have them. Each is tried passed through, where it is told of the server's own
//! authority, and read, where it is told nothing and trusts what the system does.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bastide::model::{Entry, Manifest};
use bastide::{Command, CreateOptions, Session};
use rustix::process::{Pid, Signal, kill_process};

use super::servers::PackageServer;
use super::{client, next_proxy, policy};
use crate::suite::{Context, Outcome, Trial, TrialError, skip};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    curl_fetches_by_tls,
    git_clones_and_pushes,
    pip_installs_from_an_index,
    npm_installs_from_a_registry,
    cargo_fetches_from_a_registry,
    python_fetches_by_tls,
    node_fetches_by_tls,
    java_fetches_by_tls,
    go_fetches_by_tls,
    a_static_program_fetches,
    npm_outlives_proxies_that_are_killed,
    npm_gets_packages_that_an_earlier_session_fetched,
];

/// How long a program may take on a machine that does other things, too.
const TIMEOUT: Duration = Duration::from_secs(100);

/// Has programs trust the server's own authority: whose TLS is passed through is nobody's but theirs.
const TRUST: &str = "for name in SSL_CERT_FILE REQUESTS_CA_BUNDLE NODE_EXTRA_CA_CERTS CURL_CA_BUNDLE GIT_SSL_CAINFO \
                     PIP_CERT CARGO_HTTP_CAINFO npm_config_cafile; do export $name=$PWD/authority.pem; done\n";

async fn session(
    context: &Context,
    server: &PackageServer,
    reads: bool,
) -> Result<Session, TrialError> {
    let mut options = CreateOptions::default().policy(policy(&server.policy(reads))?);
    if let (Some(path), "local") = (std::env::var_os("PATH"), context.backend.name()) {
        options.env = vec![("PATH".to_owned(), path.to_string_lossy().into_owned())];
    }
    let mut manifest = Manifest::default();
    let authority = server.authority()?.into_bytes();
    manifest.entries.insert("authority.pem".to_owned(), Entry::file(authority));
    Ok(client(context).create(&manifest, options).await?)
}

/// What a script says, in which `$AT` is the server with TLS and `$PLAIN` the one without.
async fn script(
    session: &Session,
    server: &PackageServer,
    reads: bool,
    lines: &str,
) -> Result<String, TrialError> {
    let trust = if reads { "" } else { TRUST };
    let (port, plain) = (server.port(), server.plain_port());
    let line = format!(
        "set -e\nexport HOME=$PWD AT=https://packages.test:{port} PLAIN=http://packages.test:{plain}\n{trust}{lines}"
    );
    let output = session.exec(Command::shell(&line).timeout(TIMEOUT)).await?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if let Some(reason) = said.lines().find_map(|line| line.strip_prefix("SKIP ")) {
        return Err(skip(reason));
    }
    match output.exit.code {
        0 => Ok(said),
        code => {
            let stderr = String::from_utf8_lossy(&output.stderr);
            Err(format!("it ended with {code} (read: {reads}): {said}{stderr}").into())
        }
    }
}

/// Runs a script in both kinds of session, where `program` is there, and compares what it says.
async fn both(context: &Context, program: &str, lines: &str, expected: &str) -> Outcome {
    let server = PackageServer::start(10)?;
    let lines = format!(
        "command -v {program} > /dev/null || {{ echo SKIP there is no {program}; exit 0; }}\n{lines}"
    );
    for reads in [false, true] {
        let session = session(context, &server, reads).await?;
        let said = script(&session, &server, reads, &lines).await?;
        assert_eq!(said.trim_end(), expected, "read: {reads}");
        session.delete().await?;
    }
    Ok(())
}

async fn curl_fetches_by_tls(context: Context) -> Outcome {
    both(&context, "curl", "curl -sS --max-time 60 $AT/page", "page").await
}

async fn git_clones_and_pushes(context: Context) -> Outcome {
    let lines = "
        export GIT_TERMINAL_PROMPT=0 GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
        git clone -q $AT/git/repo.git clone
        cd clone
        head -c 2000000 /dev/urandom > large
        git add large && git commit -q -m second
        git push -q origin main
        cd .. && git clone -q $AT/git/repo.git again
        cmp clone/large again/large && git -C again log -1 --format=%s";
    both(&context, "git", lines, "second").await
}

async fn pip_installs_from_an_index(context: Context) -> Outcome {
    let lines = "
        python3 -m pip --version > /dev/null 2>&1 || { echo SKIP there is no pip; exit 0; }
        python3 -m pip install -q --disable-pip-version-check --no-cache-dir --target lib --index-url $AT/simple/ tiny >&2
        PYTHONPATH=lib python3 -c 'import tiny; print(tiny.ANSWER)'";
    both(&context, "python3", lines, "42").await
}

/// Gets the lock file as any project has one, and installs what it names.
const NPM: &str = "
        mkdir -p project && cd project
        fetch=\"fetch(process.argv[1]).then(r => r.text()).then(t => process.stdout.write(t))\"
        [ -s package-lock.json ] || { node -e \"$fetch\" $AT/package.json > package.json
            node -e \"$fetch\" $AT/package-lock.json > package-lock.json; }";
const NPM_CI: &str = "
        npm ci --no-audit --no-fund --loglevel=error --cache=$HOME/cache --registry=$AT/ >&2
        ls node_modules | grep -c package-";

async fn npm_installs_from_a_registry(context: Context) -> Outcome {
    both(&context, "npm", &format!("{NPM}{NPM_CI}"), "10").await
}

async fn cargo_fetches_from_a_registry(context: Context) -> Outcome {
    let lines = "
        cargo --version > /dev/null 2>&1 || { echo SKIP cargo does not run here; exit 0; }
        mkdir -p project/src .cargo && touch project/src/lib.rs
        printf '[package]\\nname = \"own\"\\nversion = \"1.0.0\"\\nedition = \"2021\"\\n[dependencies]\\nsmall = \"1\"\\n' > project/Cargo.toml
        export CARGO_HOME=$HOME/.cargo
        printf '[source.crates-io]\\nreplace-with = \"here\"\\n[source.here]\\nregistry = \"sparse+%s/index/\"\\n' $AT > .cargo/config.toml
        cd project && cargo fetch -q >&2
        ls $CARGO_HOME/registry/cache/*/ | grep small";
    both(&context, "cargo", lines, "small-1.0.0.crate").await
}

async fn python_fetches_by_tls(context: Context) -> Outcome {
    let lines = "
        cat > get.py <<'END'
import os, urllib.request
print(urllib.request.urlopen(os.environ['AT'] + '/page', timeout=60).read().decode().strip())
try:
    import requests
except ImportError:
    # The one that pip brings along.
    from pip._vendor import requests
print(requests.get(os.environ['AT'] + '/page', timeout=60).text.strip())
END
        python3 get.py";
    both(&context, "python3", lines, "page\npage").await
}

async fn node_fetches_by_tls(context: Context) -> Outcome {
    let lines = "node -e \"fetch(process.env.AT + '/page').then(r => r.text()).then(t => process.stdout.write(t))\"";
    both(&context, "node", lines, "page").await
}

/// Java has authorities of its own kind, made here of the file that others read.
async fn java_fetches_by_tls(context: Context) -> Outcome {
    let lines = "
        command -v javac > /dev/null && command -v keytool > /dev/null || { echo SKIP there is no compiler of Java; exit 0; }
        cat > Get.java <<'END'
import java.net.URI;
import java.net.http.*;
public class Get {
    public static void main(String[] args) throws Exception {
        var page = HttpRequest.newBuilder(URI.create(System.getenv(\"AT\") + \"/page\")).build();
        System.out.print(HttpClient.newHttpClient().send(page, HttpResponse.BodyHandlers.ofString()).body());
    }
}
END
        awk '/BEGIN CERT/ { last = \"\" } { last = last $0 \"\\n\" } END { printf \"%s\", last }' $SSL_CERT_FILE > own.pem
        keytool -importcert -noprompt -storetype PKCS12 -keystore trust.p12 -storepass changeit -file own.pem 2>/dev/null
        java -Djavax.net.ssl.trustStore=trust.p12 -Djavax.net.ssl.trustStorePassword=changeit Get.java";
    both(&context, "java", lines, "page").await
}

async fn go_fetches_by_tls(context: Context) -> Outcome {
    let lines = "
        printf 'package main\\nimport (\"io\"; \"net/http\"; \"os\")\\nfunc main() {\\nr, e := http.Get(os.Getenv(\"AT\") + \"/page\")\\n' > get.go
        printf 'if e != nil { panic(e) }\\nio.Copy(os.Stdout, r.Body)\\n}\\n' >> get.go
        GOFLAGS=-mod=mod GOTOOLCHAIN=local GOCACHE=$HOME/cache go run get.go";
    both(&context, "go", lines, "page").await
}

/// T19: it has no library that would read a variable for it.
async fn a_static_program_fetches(context: Context) -> Outcome {
    let lines = "env -i $(command -v busybox) wget -q -O - $PLAIN/page";
    both(&context, "busybox", lines, "page").await
}

/// The network is served again or closed, and never open: whoever is cut off tries again.
async fn npm_outlives_proxies_that_are_killed(context: Context) -> Outcome {
    let server = PackageServer::start(context.count(300))?;
    let session = session(&context, &server, true).await?;
    let found = "command -v npm > /dev/null || echo SKIP there is no npm";
    script(&session, &server, true, found).await?;
    script(&session, &server, true, NPM).await?;
    let canary = super::Greeter::anywhere()?;
    let is_over = AtomicBool::new(false);
    let killed = async {
        let mut proxy = client(&context).egress_status(session.id()).await?.pid;
        for kill in 0..if context.full { 20 } else { 3 } {
            if kill >= 3 {
                // Three deaths a minute are forgiven.
                tokio::time::sleep(Duration::from_secs(21)).await;
            }
            let pid = i32::try_from(proxy).ok().and_then(Pid::from_raw).ok_or("no process")?;
            kill_process(pid, Signal::KILL)?;
            proxy = next_proxy(&context, &session, proxy).await?.pid;
        }
        is_over.store(true, Ordering::SeqCst);
        Ok::<_, TrialError>(())
    };
    let lines = format!("{NPM}\nrm -rf node_modules $HOME/cache\n{NPM_CI}");
    let installing = async {
        loop {
            let was_over = is_over.load(Ordering::SeqCst);
            let said = script(&session, &server, true, &lines).await;
            if was_over {
                return said;
            }
        }
    };
    let installed = async {
        tokio::select! {
            said = installing => Ok(said?),
            // It never ends but by an error: what is installed is waited for.
            error = async { match killed.await { Ok(()) => std::future::pending().await, Err(error) => error } } => Err(error),
        }
    };
    let said: Result<String, TrialError> = installed.await;
    assert!(said?.ends_with(&format!("{}\n", context.count(300))));
    assert_eq!(canary.count(), 0);
    Ok(session.delete().await?)
}

/// The second session gets every package from this machine, and can neither see nor change what is kept.
async fn npm_gets_packages_that_an_earlier_session_fetched(context: Context) -> Outcome {
    const PACKAGES: usize = 10;
    let server = PackageServer::start(PACKAGES)?;
    let kept = server.policy(false).replacen("protocol: tls", "protocol: tls\n  cache: true", 1);
    let folder = context.backend.home().join("package-cache");
    for round in 0..2 {
        let mut options = CreateOptions::default().policy(policy(&kept)?);
        if let (Some(path), "local") = (std::env::var_os("PATH"), context.backend.name()) {
            options.env = vec![("PATH".to_owned(), path.to_string_lossy().into_owned())];
        }
        let session = client(&context).create(&Manifest::default(), options).await?;
        let found = "command -v npm > /dev/null || echo SKIP there is no npm";
        script(&session, &server, true, found).await?;
        let said = script(&session, &server, true, &format!("{NPM}{NPM_CI}")).await?;
        assert_eq!(said.trim_end(), PACKAGES.to_string());
        let notes = bastide::events::egress_notes(context.backend.home(), session.id());
        let notes = std::fs::read_to_string(notes)?;
        let served = notes.matches("from the package cache").count();
        assert_eq!(served, if round == 0 { 0 } else { PACKAGES }, "{notes}");
        let lines = format!("ls -d '{}' 2> /dev/null || echo none", folder.display());
        assert_eq!(script(&session, &server, true, &lines).await?.trim_end(), "none");
        session.delete().await?;
    }
    Ok(())
}
