//! Files of the host and repositories, laid out in a workspace.

#![expect(clippy::unwrap_used, reason = "a trial fails by its message")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bastide::compat::ManifestPart;
use bastide::model::Manifest;
use bastide::{CreateOptions, ErrorClass, GitFetch, GitOptions, NetworkAccess, ProgressListener};
use serde_json::json;

use crate::suite::{Context, Outcome, Trial, TrialError, say, skip};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    copies_a_folder_of_the_host_as_it_is,
    copies_ten_thousand_files_as_one_stream,
    takes_nothing_of_the_host_from_elsewhere,
    fetches_repositories_on_the_host,
    fetches_repositories_inside,
];

fn manifest(value: serde_json::Value) -> bastide::Result<Manifest> {
    bastide::model::lax::read(&json!({ "entries": value }))
}

fn from(base: &Path) -> CreateOptions {
    CreateOptions::default().base_dir(base.to_owned())
}

/// A temporary folder by its real name: one that is reached through a link is no base.
fn folder() -> std::io::Result<(tempfile::TempDir, PathBuf)> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().canonicalize()?;
    Ok((folder, path))
}

async fn copies_a_folder_of_the_host_as_it_is(context: Context) -> Outcome {
    let (_guard, base) = folder()?;
    fs::create_dir_all(base.join("src/empty"))?;
    fs::create_dir_all(base.join("src/closed"))?;
    fs::write(base.join("src/run.sh"), "#!/bin/sh\necho ran\n")?;
    fs::set_permissions(base.join("src/run.sh"), fs::Permissions::from_mode(0o755))?;
    fs::write(base.join("src/closed/f"), "f")?;
    fs::set_permissions(base.join("src/closed"), fs::Permissions::from_mode(0o500))?;
    let entries = json!({
        "in": {"type": "local_dir", "src": "src"},
        "one": {"type": "local_file", "src": "src/run.sh", "permissions": {"owner": 6, "group": 0, "other": 0}},
    });
    let session = context.client().create_unstarted(&manifest(entries)?, from(&base)).await?;
    let done = session.compat().apply_manifest(ManifestPart::Whole).await?;
    let shown: Vec<&str> = done.files.iter().map(|file| file.path.as_str()).collect();
    let root = session.root().as_str();
    let want = ["in/closed/f", "in/run.sh", "one"].map(|path| format!("{root}/{path}"));
    assert_eq!(shown, want);
    assert_eq!(
        done.files[0].sha256,
        "252f10c83610ebca1a059c0bae8255eba2f95be4d1d7bcfa89d7248a82d9f111"
    );
    assert_eq!(
        say(&session, "ls -d in/empty; in/run.sh; cat in/closed/f").await?,
        "in/empty\nran\nf"
    );
    assert_eq!(say(&session, "stat -c %a in/closed in/run.sh one").await?, "500\n755\n600\n");
    say(&session, "chmod 700 in/closed").await?;
    fs::set_permissions(base.join("src/closed"), fs::Permissions::from_mode(0o700))?;
    Ok(session.delete().await?)
}

async fn copies_ten_thousand_files_as_one_stream(context: Context) -> Outcome {
    let (_guard, base) = folder()?;
    let count = context.count(10_000);
    for number in 0..count {
        let folder = base.join(format!("many/{:03}", number / 100));
        if number % 100 == 0 {
            fs::create_dir_all(&folder)?;
        }
        fs::write(folder.join(format!("{number}.txt")), format!("{number}\n"))?;
    }
    let seen = Arc::new(AtomicU64::new(0));
    let mut options = from(&base);
    let reported = Arc::clone(&seen);
    options.progress = Some(ProgressListener::new(move |progress| {
        reported.fetch_max(progress.entries, Ordering::SeqCst);
    }));
    let entries = json!({"many": {"type": "local_dir", "src": "many"}});
    let session = context.client().create(&manifest(entries)?, options).await?;
    assert!(seen.load(Ordering::SeqCst) >= count as u64, "it says how far it is");
    let sum: usize = (0..count).sum();
    let line =
        "find many -type f | wc -l; find many -type f -exec cat {} + | awk '{s+=$1} END {print s}'";
    assert_eq!(say(&session, line).await?, format!("{count}\n{sum}\n"));
    Ok(session.delete().await?)
}

async fn takes_nothing_of_the_host_from_elsewhere(context: Context) -> Outcome {
    let (_guard, top) = folder()?;
    let base = top.join("base");
    fs::create_dir_all(base.join("src"))?;
    fs::write(top.join("secret"), "s")?;
    std::os::unix::fs::symlink("../../secret", base.join("src/link"))?;
    std::os::unix::fs::symlink("src", base.join("way"))?;
    let cases = [
        (json!({"a": {"type": "local_file", "src": "../secret"}}), "outside_base_dir"),
        (json!({"a": {"type": "local_file", "src": top.join("secret")}}), "outside_base_dir"),
        (json!({"a": {"type": "local_file", "src": "src/link"}}), "symlink_not_supported"),
        (json!({"a": {"type": "local_dir", "src": "src"}}), "symlink_not_supported"),
        (json!({"a": {"type": "local_dir", "src": "way"}}), "symlink_not_supported"),
        (json!({"a": {"type": "local_dir", "src": "none"}}), "path_not_found"),
    ];
    for (entries, reason) in cases {
        let refused = context.client().create(&manifest(entries.clone())?, from(&base)).await;
        let refused = refused.map(drop).unwrap_err();
        assert_eq!(refused.context()["reason"], reason, "{entries}");
    }
    let entries = json!({"a": {"type": "local_file", "src": "src/x"}});
    let nowhere = context.client().create(&manifest(entries)?, CreateOptions::default()).await;
    assert!(nowhere.map(drop).unwrap_err().hint().is_some(), "without a base there is none");
    Ok(())
}

/// A server that speaks git over TLS on loopback, with one repository.
struct GitServer {
    child: Child,
    host: String,
    ca_file: PathBuf,
    commit: String,
}

impl Drop for GitServer {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

const SERVER: &str = include_str!("../../data/git_server.py");

/// Makes a repository with a branch, a tag and a subfolder, and hooks and filters that would leave a
/// trace where they ran.
const REPOSITORY: &str = r#"
set -e
git init -q -b main work && cd work
git config user.email a@b && git config user.name n && git config commit.gpgsign false
mkdir -p sub/deep && echo top > top.txt && echo deep > sub/deep/f.txt && ln -s top.txt link
printf '#!/bin/sh\necho ran\n' > run.sh && chmod 755 run.sh
echo '* filter=evil' > .gitattributes
printf '[submodule "x"]\n\tpath = x\n\turl = ext::sh -c "touch TRACE"\n' > .gitmodules
git add -A && git commit -q -m one && git tag v1
echo changed > top.txt && git commit -q -am two && git checkout -q -b side
echo side > side.txt && git add side.txt && git commit -q -m three
cd .. && mkdir -p served/o && git clone -q --bare work served/o/r.git
git -C served/o/r.git config http.receivepack false
"#;

fn serve(base: &Path) -> Result<GitServer, TrialError> {
    for program in ["git", "python3", "openssl"] {
        let found = Command::new(program)
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        if found.is_err() {
            return Err(skip(format!("there is no {program} on this machine")));
        }
    }
    let quiet = |command: &mut Command| -> Result<(), TrialError> {
        let output = command.current_dir(base).env("HOME", base).stdin(Stdio::null()).output()?;
        match output.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned().into()),
        }
    };
    quiet(Command::new("sh").args(["-c", REPOSITORY]))?;
    let subject = "subjectAltName=DNS:localhost,IP:127.0.0.1";
    quiet(Command::new("openssl").args([
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-keyout",
        "key.pem",
        "-out",
        "cert.pem",
        "-subj",
        "/CN=localhost",
        "-addext",
        subject,
    ]))?;
    fs::write(base.join("server.py"), SERVER)?;
    let mut child = Command::new("python3")
        .args(["server.py", "served", "cert.pem", "key.pem"])
        .current_dir(base)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let mut port = String::new();
    let stdout = child.stdout.take().ok_or("no output")?;
    BufReader::new(stdout).read_line(&mut port)?;
    let commit =
        Command::new("git").args(["-C", "work", "rev-parse", "v1"]).current_dir(base).output()?;
    let commit = String::from_utf8(commit.stdout)?.trim().to_owned();
    let host = format!("localhost:{}", port.trim());
    Ok(GitServer { child, host, ca_file: base.join("cert.pem"), commit })
}

async fn fetches_repositories_on_the_host(context: Context) -> Outcome {
    let (_guard, base) = folder()?;
    let server = serve(&base)?;
    let mut options = CreateOptions::default();
    options.git = GitOptions::fetched(GitFetch::Host);
    options.git.ca_file = Some(server.ca_file.clone());
    fetches(&context, &server, &options, None).await?;
    assert!(!base.join("TRACE").exists() && !base.join("work/TRACE").exists());
    // Without the certificate the server is nobody.
    options.git.ca_file = None;
    let entries = json!({"r": repository(&server, "main", None)});
    let refused =
        context.client().create(&manifest(entries)?, options).await.map(drop).unwrap_err();
    assert_eq!(refused.class(), Some(ErrorClass::GitCloneError), "{refused}");
    Ok(())
}

async fn fetches_repositories_inside(context: Context) -> Outcome {
    let probe = context.session().await?;
    let is_namespaces = probe.receipt().rung == bastide::Rung::Namespaces;
    probe.delete().await?;
    if !context.backend.has_host_files() || !is_namespaces {
        return Err(skip("the host's loopback cannot be reached from inside"));
    }
    let (_guard, base) = folder()?;
    let server = serve(&base)?;
    let options = CreateOptions::default()
        .git(GitOptions::fetched(GitFetch::Inside))
        .network(NetworkAccess::Host);
    fetches(&context, &server, &options, Some(&base)).await
}

fn repository(server: &GitServer, reference: &str, subpath: Option<&str>) -> serde_json::Value {
    json!({"type": "git_repo", "host": server.host, "repo": "o/r", "ref": reference, "subpath": subpath})
}

async fn fetches(
    context: &Context,
    server: &GitServer,
    options: &CreateOptions,
    granted: Option<&Path>,
) -> Outcome {
    let entries = json!({
        "main": repository(server, "main", None),
        "tag": repository(server, "v1", None),
        "side": repository(server, "side", None),
        "commit": repository(server, &server.commit, None),
        "part": repository(server, "main", Some("sub")),
    });
    let mut value = json!({"entries": entries});
    if let Some(folder) = granted {
        let ca_file = server.ca_file.to_string_lossy();
        value["environment"] = json!({"value": {"GIT_SSL_CAINFO": ca_file}});
        value["extra_path_grants"] = json!([{"path": folder, "read_only": true}]);
    }
    let manifest: Manifest = bastide::model::lax::read(&value)?;
    let session = context.client().create(&manifest, options.clone()).await?;
    let line = "cat main/top.txt tag/top.txt commit/top.txt side/side.txt; find part | sort; readlink main/link; main/run.sh";
    let want = "changed\ntop\ntop\nside\npart\npart/deep\npart/deep/f.txt\ntop.txt\nran\n";
    assert_eq!(say(&session, line).await?, want);
    assert_eq!(say(&session, "ls -d main/.git; stat -c %a main").await?, "main/.git\n755\n");
    if !say(&session, "command -v git || true").await?.is_empty() {
        let line = "git config --global --add safe.directory '*'; git -C main log -1 --format=%s; git -C main status --porcelain; git -C tag log -1 --format=%s";
        assert_eq!(
            say(&session, line).await?,
            "two\none\n",
            "it is a repository, and nothing changed"
        );
    }
    session.delete().await?;
    for (reference, subpath, class) in [
        ("no-such-ref", None, ErrorClass::GitCloneError),
        ("0123456789abcdef", None, ErrorClass::GitCloneError),
        ("main", Some("no/such"), ErrorClass::GitCopyError),
        ("main", Some("../x"), ErrorClass::GitSubpathError),
    ] {
        value["entries"] = json!({"r": repository(server, reference, subpath)});
        let manifest: Manifest = bastide::model::lax::read(&value)?;
        let refused = context.client().create(&manifest, options.clone()).await;
        let refused = refused.map(drop).unwrap_err();
        assert_eq!(refused.class(), Some(class), "{reference} {subpath:?}: {refused}");
        // Where the host keeps what it fetched is nothing to whoever wrote the manifest.
        let reported = format!("{refused} {}", serde_json::Value::from(refused.context().clone()));
        assert!(!reported.contains("cache/git"), "{reference} {subpath:?}: {reported}");
    }
    Ok(())
}
