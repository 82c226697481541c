//! Ports of a sandbox that are published on this host.

use serde_json::{Value, json};

use crate::arguments::Arguments;
use crate::state::{Database, Port, Sandbox, say};
use crate::{Failure, Outcome, fail};

/// Where ports are published unless it is said otherwise.
const LOOPBACK: &str = "127.0.0.1";

const PROTOCOLS: [&str; 6] = ["tcp", "tcp4", "tcp6", "udp", "udp4", "udp6"];

/// `[[HOST_IP:]HOST_PORT:]SANDBOX_PORT[/PROTOCOL]`, taken apart.
#[derive(Debug, PartialEq, Eq)]
struct Spec<'a> {
    host_ip: Option<&'a str>,
    host_port: Option<u16>,
    sandbox_port: u16,
    protocol: &'a str,
}

impl<'a> Spec<'a> {
    fn parse(text: &'a str) -> Result<Self, Failure> {
        let wrong = || Failure(1, format!("invalid port spec {text:?}"));
        let (rest, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
        if !PROTOCOLS.contains(&protocol) {
            return Err(wrong());
        }
        let number =
            |text: &str| text.parse::<u16>().ok().filter(|port| *port != 0).ok_or_else(wrong);
        let (before, sandbox_port) = match rest.rsplit_once(':') {
            Some((before, port)) => (Some(before), number(port)?),
            None => (None, number(rest)?),
        };
        let (host_ip, host_port) = match before.map(|before| before.rsplit_once(':')) {
            None => (None, None),
            Some(None) => (None, before.map(number).transpose()?),
            Some(Some((ip, port))) => (Some(ip), Some(number(port)?)),
        };
        Ok(Self { host_ip, host_port, sandbox_port, protocol })
    }
}

pub(crate) async fn ports(world: &Database, rest: &[String]) -> Outcome {
    let known: &[(&[&str], bool)] =
        &[(&["--json"], false), (&["--publish"], true), (&["--unpublish"], true)];
    let given = Arguments::parse(rest, known, usize::MAX)?;
    let name = given.word(0, "SANDBOX")?;
    let sandbox = world.sandbox(name)?;
    if !sandbox.running {
        return fail(format!("sandbox '{name}' is not running"));
    }
    let specs = given.values("--publish").map(Spec::parse).collect::<Result<Vec<_>, _>>()?;
    if given.has("--unpublish") {
        return fail("the stand-in cannot unpublish: a local sandbox keeps its ports");
    }
    for spec in &specs {
        publish(world, name, spec).await?;
    }
    if specs.is_empty() {
        return list(&sandbox, given.has("--json"));
    }
    Ok(0)
}

async fn publish(world: &Database, name: &str, spec: &Spec<'_>) -> Result<(), Failure> {
    if spec.host_port.is_some() || spec.host_ip.is_some_and(|ip| ip != LOOPBACK) {
        let why = "the stand-in publishes on loopback, on ports that it chooses";
        return Err(Failure(1, why.to_owned()));
    }
    if !spec.protocol.starts_with("tcp") {
        return Err(Failure(1, format!("the stand-in has no {}", spec.protocol)));
    }
    let published = world.session(name).await?.expose(spec.sandbox_port).await?;
    let host_port = u16::try_from(published.port)
        .map_err(|_| Failure(1, format!("{} is no port", published.port)))?;
    let port = Port {
        host_ip: LOOPBACK.to_owned(),
        host_port,
        sandbox_port: spec.sandbox_port,
        protocol: "tcp".to_owned(),
    };
    world.change_sandbox(name, |sandbox| {
        sandbox.ports.retain(|known| known.sandbox_port != port.sandbox_port);
        sandbox.ports.push(port.clone());
    })?;
    say(format!("Published {}", text(&port))).map(drop)
}

/// A port as tables have it.
pub(crate) fn text(port: &Port) -> String {
    format!("{}:{}->{}/{}", port.host_ip, port.host_port, port.sandbox_port, port.protocol)
}

/// Ports as JSON has them.
pub(crate) fn rows(ports: &[Port]) -> Vec<Value> {
    let row = |port: &Port| {
        json!({"host_ip": port.host_ip, "host_port": port.host_port,
               "sandbox_port": port.sandbox_port, "protocol": port.protocol})
    };
    ports.iter().map(row).collect()
}

fn list(sandbox: &Sandbox, as_json: bool) -> Outcome {
    if as_json {
        return say(Value::Array(rows(&sandbox.ports)).to_string());
    }
    sandbox.ports.iter().try_for_each(|port| say(text(port)).map(drop))?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs_are_read_as_documented() {
        let spec = |text| Spec::parse(text).unwrap();
        let plain = Spec { host_ip: None, host_port: None, sandbox_port: 80, protocol: "tcp" };
        assert_eq!(spec("80"), plain);
        assert_eq!(spec("80/udp6").protocol, "udp6");
        assert_eq!((spec("3000:80").host_port, spec("3000:80").sandbox_port), (Some(3000), 80));
        assert_eq!(spec("0.0.0.0:3000:80").host_ip, Some("0.0.0.0"));
        for wrong in ["", "0", "x", "1:", ":1", "80/sctp", "65536", "a:1:2:x"] {
            assert!(Spec::parse(wrong).is_err(), "{wrong}");
        }
    }
}
