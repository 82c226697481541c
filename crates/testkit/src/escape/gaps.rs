//! Whether the receipt says what does not hold: no more, and no less.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};

use bastide::model::Manifest;
use bastide::{CreateOptions, NetworkAccess};

use super::attempt;
use super::probe::Segment;
use crate::suite::{Context, Outcome, Trial, TrialError, with_probe};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    says_exactly_what_it_does_not_hold,
    says_exactly_what_it_does_not_hold_with_the_hosts_network,
    cannot_reach_shared_memory_of_the_host,
];

async fn says_exactly_what_it_does_not_hold(context: Context) -> Outcome {
    compare(&context, NetworkAccess::None).await
}

async fn says_exactly_what_it_does_not_hold_with_the_hosts_network(context: Context) -> Outcome {
    compare(&context, NetworkAccess::Host).await
}

/// Puts something of every kind outside, lets a probe try each, and compares what it reached with what
/// the receipt says, word by word.
async fn compare(context: &Context, network: NetworkAccess) -> Outcome {
    let folder = tempfile::tempdir_in("/var/tmp")?;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
    let file = folder.path().join("canary");
    fs::write(&file, "bastide-canary")?;
    let socket = folder.path().join("socket");
    let unix = UnixListener::bind(&socket)?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut process = Command::new("sleep");
    process.arg("7111").env("BASTIDE_CANARY", "bastide-canary").stdin(Stdio::null());
    let mut process = process.spawn()?;
    let reached = async {
        let options = CreateOptions::default().network(network);
        let manifest = with_probe(Manifest::default())?;
        let session = context.client().create(&manifest, options).await?;
        let (file, socket) = (file.display().to_string(), socket.display().to_string());
        let (pid, port) = (process.id().to_string(), listener.local_addr()?.port().to_string());
        let reached = attempt(&session, "gaps", &[&file, &pid, &port, &socket]).await?;
        let said = session.receipt().not_enforced.clone();
        session.delete().await?;
        Ok::<_, TrialError>((reached, said))
    };
    let reached = reached.await;
    process.kill()?;
    process.wait()?;
    drop(unix);
    let (reached, said) = reached?;
    let word = |line: &str| line.split(':').next().unwrap_or_default().to_owned();
    let reached: BTreeSet<_> = reached.lines().map(str::to_owned).collect();
    let mut said: BTreeSet<_> = said.iter().map(|line| word(line)).collect();
    if context.backend.name() == "kubernetes" {
        // What a pod says of its node and its namespace, which not everybody inside can try.
        let untried = ["ids", "users", "Pod Security `restricted`"];
        said.retain(|word| reached.contains(word) || !untried.contains(&word.as_str()));
    }
    assert_eq!(reached, said, "reached, and said");
    Ok(())
}

async fn cannot_reach_shared_memory_of_the_host(context: Context) -> Outcome {
    let Some(segment) = Segment::make() else { return Err(crate::suite::skip("no shared memory")) };
    let session = super::session(&context).await?;
    let key = segment.key().to_string();
    assert_eq!(attempt(&session, "segment", &[&key]).await?, "");
    let file = std::path::Path::new("/dev/shm").join(format!("canary-{}", std::process::id()));
    let made = fs::write(&file, "bastide-canary");
    let path = file.display().to_string();
    let read = attempt(&session, "read", &[&path]).await;
    drop(fs::remove_file(&file));
    if made.is_ok() {
        assert_eq!(read?, "");
    }
    Ok(session.delete().await?)
}
