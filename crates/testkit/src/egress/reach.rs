//! What is reached, and what is not.

use bastide::NetworkAccess;

use super::{Greeter, own_address, policy_for, session};
use crate::escape::attempt;
use crate::suite::{Context, Outcome, Trial, say};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    reaches_what_the_policy_names_and_nothing_else,
    refuses_at_once_what_nobody_listens_to,
    asks_no_name_server_of_anybodys_choice,
    keeps_servers_inside_apart,
];

/// What a rule allows is reached, and nothing beside it.
async fn reaches_what_the_policy_names_and_nothing_else(context: Context) -> Outcome {
    let (allowed, canary) = (Greeter::start()?, Greeter::anywhere()?);
    let session = session(&context, policy_for(&allowed)?).await?;
    assert_eq!(session.receipt().network, NetworkAccess::Policy);
    let walls = &session.receipt().walls;
    assert!(walls.iter().any(|wall| wall.contains("proxy alone, 1 rule")), "{walls:?}");
    let port = allowed.port.to_string();
    let greeted = attempt(&session, "dial", &["allowed.test", &port]).await?;
    assert_eq!((greeted.as_str(), allowed.count()), ("heard \"welcome\"\n", 1));
    // Another name, the address itself, and another port of the name.
    for (host, port) in [
        ("denied.test", port.as_str()),
        ("203.0.113.7", &port),
        ("allowed.test", &canary.port.to_string()),
        ("allowed.test", "443"),
    ] {
        let said = attempt(&session, "dial", &[host, port]).await?;
        assert!(!said.contains("welcome"), "{host}:{port}: {said}");
    }
    if let Some(own) = own_address() {
        let (own, canary_port) = (own.ip().to_string(), canary.port.to_string());
        assert_eq!(attempt(&session, "dial", &[&own, &canary_port]).await?, "refused\n");
        let said = attempt(&session, "datagram", &[&format!("{own}:{canary_port}")]).await?;
        assert_eq!(said, "refused\n");
    }
    assert_eq!((allowed.count(), canary.count()), (1, 0));
    Ok(session.delete().await?)
}

/// What no socket takes, the kernel refuses; what nobody may have, the filter does.
async fn refuses_at_once_what_nobody_listens_to(context: Context) -> Outcome {
    let allowed = Greeter::start()?;
    let session = session(&context, policy_for(&allowed)?).await?;
    assert_eq!(attempt(&session, "dial", &["203.0.113.7", "444"]).await?, "refused\n");
    assert_eq!(attempt(&session, "dial", &["169.254.169.254", "8080"]).await?, "refused\n");
    // QUIC, and DNS over TLS.
    assert_eq!(attempt(&session, "datagram", &["203.0.113.7:443"]).await?, "refused\n");
    assert_eq!(attempt(&session, "dial", &["203.0.113.7", "853"]).await?, "refused\n");
    let six = attempt(&session, "dial", &["[2001:db8::1]", "443"]).await?;
    assert!(["unreachable\n", "AddrNotAvailable\n"].contains(&six.as_str()), "{six}");
    assert_eq!(attempt(&session, "raw-sockets", &[]).await?, "");
    // Loopback and one end of the pair, and no setting of it can be changed.
    let devices =
        say(&session, "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' ' | sort").await?;
    assert_eq!(devices, "eth0\nlo\n");
    let six = say(&session, "grep -v ' lo$' /proc/net/if_inet6 || true").await?;
    assert_eq!(six, "", "an address of IPv6");
    let written = "echo 1 > /proc/sys/net/ipv4/ip_forward || echo refused";
    assert_eq!(say(&session, &format!("({written}) 2>/dev/null")).await?, "refused\n");
    Ok(session.delete().await?)
}

/// Whichever server is asked, the proxy answers, and asks nobody.
async fn asks_no_name_server_of_anybodys_choice(context: Context) -> Outcome {
    let allowed = Greeter::start()?;
    let session = session(&context, policy_for(&allowed)?).await?;
    for server in ["198.18.0.1", "203.0.113.53"] {
        let said = attempt(&session, "ask-name", &[server, "secret.denied.test"]).await?;
        assert!(said.starts_with("code 3, 0 answers"), "{said}");
        assert!(said.ends_with(&format!("from {server}\n")), "{said}");
        let said = attempt(&session, "ask-name", &[server, "allowed.test"]).await?;
        assert!(said.starts_with("code 0, 1 answers"), "{said}");
    }
    let resolver = say(&session, "cat /etc/resolv.conf").await?;
    assert_eq!(resolver, "nameserver 198.18.0.1\noptions timeout:2 attempts:2\n");
    Ok(session.delete().await?)
}

/// A server inside has the ports that listeners outside have, too.
async fn keeps_servers_inside_apart(context: Context) -> Outcome {
    let allowed = Greeter::start()?;
    let session = session(&context, policy_for(&allowed)?).await?;
    assert_eq!(attempt(&session, "loopback", &[]).await?, "talked over loopback\n");
    let other = Greeter::start()?;
    let port = other.port.to_string();
    assert_eq!(attempt(&session, "dial", &["127.0.0.1", &port]).await?, "refused\n");
    assert_eq!(other.count(), 0);
    Ok(session.delete().await?)
}
