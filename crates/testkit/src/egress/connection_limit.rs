//! More connections than a session may have.

use std::io::{Read, Write};
use std::net::TcpListener;

use super::{policy, session};
use crate::escape::attempt;
use crate::suite::{Context, Outcome, Trial, TrialError};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![carries_as_many_as_may_be_in_little_memory];

/// As many as are carried where nobody says.
const CARRIED: usize = 256;

/// The most memory that the proxy may have had, in KiB.
pub(super) const MEMORY: u64 = 32 << 10;

/// A server that greets everybody and lets nobody go before they want to.
fn host() -> Result<u16, TrialError> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                // Whoever is gone already heard nothing.
                drop(stream.write_all(b"welcome\n"));
                drop(stream.read_to_end(&mut Vec::new()));
            });
        }
    });
    Ok(port)
}

async fn carries_as_many_as_may_be_in_little_memory(context: Context) -> Outcome {
    let port = host()?;
    let text =
        format!("rules:\n- allow: host.test\n  ports: [{port}]\nhosts: {{host.test: 127.0.0.1}}\n");
    let session = session(&context, policy(&text)?).await?;
    let proxy = context.client().egress_status(session.id()).await?.pid;
    let count = if context.full { "10000" } else { "2000" };
    let said = attempt(&session, "crowd", &["host.test", &port.to_string(), count]).await?;
    assert!(said.ends_with(&format!(", {CARRIED} greeted\n")), "{said}");
    let most = highest_memory(proxy)?;
    assert!(most <= MEMORY, "{most} KiB for {said}");
    // Whoever comes when the others have gone is served.
    let greeted = attempt(&session, "dial", &["host.test", &port.to_string()]).await?;
    assert_eq!(greeted, "heard \"welcome\"\n");
    assert_eq!(context.client().egress_status(session.id()).await?.pid, proxy, "none has died");
    Ok(session.delete().await?)
}

/// The most memory that a process has had, in KiB.
pub(super) fn highest_memory(pid: u32) -> Result<u64, TrialError> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    Ok(most.ok_or("no memory")?.trim().trim_end_matches(" kB").parse()?)
}
