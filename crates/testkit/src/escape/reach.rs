//! Networks, sockets, other sessions.

use std::net::{Ipv4Addr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};

use bastide::model::Manifest;
use bastide::{CreateOptions, NetworkAccess, Rung};

use super::{attempt, session};
use crate::suite::{Context, Outcome, Trial, running, say, sh, with_probe};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    cannot_reach_the_network,
    has_loopback_of_its_own,
    cannot_reach_sockets_of_the_host,
    cannot_reach_another_session,
    has_the_hosts_network_where_asked,
];

pub(super) async fn cannot_reach_the_network(context: Context) -> Outcome {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let session = session(&context).await?;
    let port = listener.local_addr()?.port().to_string();
    assert_eq!(attempt(&session, "connect", &["127.0.0.1", &port]).await?, "");
    if session.receipt().rung == Rung::Landlock {
        // There is no socket to send through at all.
        assert_eq!(attempt(&session, "families", &[]).await?, "");
        return Ok(session.delete().await?);
    }
    if context.backend.name() == "kubernetes" {
        // A pod has an interface whatever it may do with it; what is behind must not answer.
        let everywhere = TcpListener::bind("0.0.0.0:0")?;
        let port = everywhere.local_addr()?.port().to_string();
        let gateway = gateway(&say(&session, "cat /proc/net/route").await?).ok_or("no gateway")?;
        assert_eq!(attempt(&session, "connect", &[&gateway.to_string(), &port]).await?, "");
        return Ok(session.delete().await?);
    }
    // Nothing but loopback exists to send through.
    assert_eq!(say(&session, "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '").await?, "lo\n");
    Ok(session.delete().await?)
}

/// The address that everything else is reached by, as the kernel tells of routes.
fn gateway(routes: &str) -> Option<Ipv4Addr> {
    let mut fields = routes.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let default = fields.find(|fields| fields.get(1) == Some(&"00000000"))?;
    let bytes = u32::from_str_radix(default.get(2)?, 16).ok()?.to_le_bytes();
    Some(Ipv4Addr::from(bytes))
}

async fn has_loopback_of_its_own(context: Context) -> Outcome {
    let session = session(&context).await?;
    assert_eq!(attempt(&session, "loopback", &[]).await?, "talked over loopback\n");
    Ok(session.delete().await?)
}

async fn cannot_reach_sockets_of_the_host(context: Context) -> Outcome {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("docker.sock");
    // As little known to anybody else as the folder's.
    let name = format!("bastide-canary-{}", folder.path().display());
    let datagrams = folder.path().join("log.sock");
    let listeners = (
        UnixListener::bind(&path)?,
        UnixDatagram::bind(&datagrams)?,
        UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?,
    );
    let path = path.display().to_string();
    let session = session(&context).await?;
    assert_eq!(
        attempt(&session, "sockets", &[&path, &name, &datagrams.display().to_string()]).await?,
        ""
    );
    session.delete().await?;
    if context.backend.name() == "kubernetes" {
        // No pod has the host's network.
        return Ok(());
    }
    // With the host's network its abstract sockets are one connect away.
    let options = CreateOptions::default().network(NetworkAccess::Host);
    let manifest = with_probe(Manifest::default())?;
    let session = context.client().create(&manifest, options).await?;
    let far = [path.as_str(), &name, &datagrams.display().to_string()];
    assert_eq!(attempt(&session, "sockets", &far).await?, "");
    drop(listeners);
    Ok(session.delete().await?)
}

/// With the host's network names mean what they mean there, and the receipt says what that opens.
async fn has_the_hosts_network_where_asked(context: Context) -> Outcome {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let options = CreateOptions::default().network(NetworkAccess::Host);
    let manifest = with_probe(Manifest::default())?;
    let session = context.client().create(&manifest, options).await?;
    let port = listener.local_addr()?.port().to_string();
    let reached = attempt(&session, "connect", &["127.0.0.1", &port]).await?;
    assert_eq!(reached, format!("connected to 127.0.0.1:{port}\n"));
    let said = &session.receipt().not_enforced;
    assert!(said.iter().any(|gap| gap.contains("loopback included")), "{said:?}");
    for file in ["/etc/resolv.conf", "/etc/hosts"] {
        let host = std::fs::read_to_string(file).unwrap_or_default();
        let inside = say(&session, &format!("cat {file}")).await?;
        assert!(inside.ends_with(&host), "{file}: {inside}");
    }
    Ok(session.delete().await?)
}

pub(super) async fn cannot_reach_another_session(context: Context) -> Outcome {
    let other = session(&context).await?;
    say(&other, "echo bastide-canary > secret; (sleep 7102 >/dev/null 2>&1 &)").await?;
    let session = session(&context).await?;
    let secret = format!("{}/secret", other.root());
    let files = format!("/proc/[0-9]*/root{secret} /proc/[0-9]*/cwd/secret");
    assert_eq!(say(&session, &format!("cat {files} 2>/dev/null; true")).await?, "");
    if session.receipt().rung == Rung::Landlock {
        let line = format!("cat {secret}; echo x > {secret}; ls {}", other.root());
        let output = session.exec(sh(&line)).await?;
        assert_eq!((output.exit.code == 0, &output.stdout[..]), (false, &b""[..]));
        let line = "for p in /proc/[0-9]*; do grep -aq '^sleep.7102' $p/cmdline && kill -9 ${p#/proc/} && echo killed
                    done 2>/dev/null; true";
        assert_eq!(say(&session, line).await?, "");
    } else {
        let line =
            "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -o '[s]leep 7102'; true";
        assert_eq!(say(&session, line).await?, "");
    }
    assert_eq!(running(&other, "^sleep 7102").await?, 1);
    session.delete().await?;
    Ok(other.delete().await?)
}
