//! What a network with a policy reads: policies, and what programs inside send.

use bastide_egress::{ClientHello, HeadCheck, dns_reply, peek};
use bastide_model::document::Format;
use bastide_model::policy::{
    Flow, Host, HttpRequest, NormalPath, PathGlob, Policy, Verdict as Decision,
};

use super::{Target, Verdict, equal};

const WHOLE: &str = "rules:
- allow: ['*.a.org', 10.0.0.0/8]
  ports: [443, '8000-8010']
  http: [{methods: [GET], paths: ['/a/**'], query: {q: 'x*'}}]
  protocol: tls
  inject: [{header: authorization, value: 'Basic ${K|basic:me}'}]
- deny: '**.b.org'
  reason: no
- ask: '*'
secrets: {K: {from: 'env:K'}, P: {from: 'file:/p', env: P, hosts: [c.org]}}
hosts: {git.corp: 10.1.2.3}
upstream: {proxy: 'http://p:1', no_proxy: [corp], dns: '10.0.0.1:53'}
limits: {connections: 4}
";

pub(super) const POLICY: Target = Target {
    name: "egress_policy",
    check: |input| {
        let Ok(text) = std::str::from_utf8(input) else { return Verdict::Refused };
        let Ok(policy) = Policy::parse("p.yaml", text, Format::Yaml) else {
            return Verdict::Refused;
        };
        for host in ["a.org", "x.a.org", "10.0.0.1"] {
            let Ok(host) = Host::parse(host) else { continue };
            let found = policy.explain(&Flow { host: &host, port: 443, http: None });
            if found.verdict != Decision::Deny && policy.rules.is_empty() {
                return Verdict::Broken("allowed without a rule".to_owned());
            }
        }
        if policy.ports().len() > 512 {
            return Verdict::Broken("more ports than there may be".to_owned());
        }
        match Policy::from_json(&policy.to_value().to_string()) {
            Ok(again) => equal("policy", &policy, &again),
            Err(error) => Verdict::Broken(format!("its own text is refused: {error}")),
        }
    },
    seeds: || vec![WHOLE.into(), b"rules: [{allow: a.org}]".to_vec()],
    words: &[
        "allow", "deny", "ask", "*.", "**.", "/8", "ports: ", "0", "65536", "{", "}", "@pip",
        "xn--", "${", "|basic:",
    ],
};

pub(super) const PATH: Target = Target {
    name: "egress_path",
    check: |input| {
        let Ok(text) = std::str::from_utf8(input) else { return Verdict::Refused };
        let Ok(path) = NormalPath::parse(text) else { return Verdict::Refused };
        let segments = || path.as_str().split('/');
        if segments().any(|segment| segment == "." || segment == "..") {
            return Verdict::Broken(format!("{} has dot segments", path.as_str()));
        }
        if let Ok(glob) = PathGlob::parse("/allowed/**")
            && glob.fits(&path)
            && !path.as_str().starts_with("/allowed/")
        {
            return Verdict::Broken(format!("{} is taken for another", path.as_str()));
        }
        let Ok(policy) =
            Policy::parse("p", "rules: [{allow: a.org, http: [{paths: ['/a']}]}]", Format::Yaml)
        else {
            return Verdict::Broken("the policy is refused".to_owned());
        };
        let host = Host::Name("a.org".to_owned());
        let http = HttpRequest { method: "GET", path: &path, query: None, headers: &[] };
        let found = policy.explain(&Flow { host: &host, port: 443, http: Some(http) });
        if (found.verdict == Decision::Allow) != (path.as_str() == "/a") {
            return Verdict::Broken(format!("{} is decided as another", path.as_str()));
        }
        match NormalPath::parse(path.as_str()) {
            // What can be read in two ways may be gone with the segment that it was in.
            Ok(again) => equal("path", &path.as_str(), &again.as_str()),
            Err(bad) => Verdict::Broken(format!("its own form is refused: {bad}")),
        }
    },
    seeds: || ["/a", "/allowed/x/../y", "/a/%2e%2e/b", "/%2f;"].map(|seed| seed.into()).to_vec(),
    words: &["/", "..", "%2e", "%2F", "%00", "%5c", ";", "\\", "//", "?", "%"],
};

pub(super) const DNS: Target = Target {
    name: "egress_dns",
    check: |input| {
        let Ok(policy) = Policy::parse("p", "rules: [{allow: '**.a.org'}]", Format::Yaml) else {
            return Verdict::Broken("the policy is refused".to_owned());
        };
        match dns_reply(&policy, input) {
            None => Verdict::Refused,
            Some(reply) if reply.len() > 1232 => Verdict::Broken("a long answer".to_owned()),
            Some(reply) if reply.get(..2) != input.get(..2) => {
                Verdict::Broken("an answer to another question".to_owned())
            }
            Some(_) => Verdict::Accepted,
        }
    },
    seeds: || {
        let mut question = vec![0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        question.extend(b"\x01x\x01a\x03org\0\0\x01\0\x01");
        vec![question]
    },
    words: &["\u{c}", "\0\u{1}", "\u{3}org", "\0"],
};

pub(super) const HELLO: Target = Target {
    name: "egress_hello",
    check: |input| match peek(input) {
        ClientHello::Partial | ClientHello::Malformed => Verdict::Refused,
        ClientHello::Whole(Some(name)) if name != name.to_ascii_lowercase() => {
            Verdict::Broken(format!("{name} is not in lower case"))
        }
        ClientHello::Whole(_) => Verdict::Accepted,
    },
    seeds: || vec![hello()],
    words: &["\u{16}\u{3}\u{1}", "\0\0", "a.org"],
};

/// A first message with a name.
fn hello() -> Vec<u8> {
    let name = b"x.a.org";
    let length = |bytes: &[u8]| u16::try_from(bytes.len()).unwrap_or_default().to_be_bytes();
    let entry = [&[0][..], &length(name), name].concat();
    let list = [&length(&entry)[..], &entry].concat();
    let names = [&[0, 0][..], &length(&list), &list].concat();
    let groups = [0, 10, 0, 4, 0, 2, 0, 29];
    let schemes = [0, 13, 0, 4, 0, 2, 4, 3];
    let versions = [0, 43, 0, 3, 2, 3, 4];
    let share = [&[0, 51, 0, 38, 0, 36, 0, 29, 0, 32][..], &[9; 32]].concat();
    let extensions = [&names[..], &groups, &schemes, &versions, &share].concat();
    let body =
        [&[3, 3][..], &[7; 32], &[0], &[0, 2, 0x13, 1], &[1, 0], &length(&extensions), &extensions]
            .concat();
    let message = [&[1, 0][..], &length(&body), &body].concat();
    [&[0x16, 3, 1][..], &length(&message), &message].concat()
}

pub(super) const HEAD: Target = Target {
    name: "egress_head",
    check: |input| {
        let whole = feed(input, input.len().max(1));
        let cut = feed(input, 3);
        match (whole, cut) {
            (Err(_), Err(_)) => Verdict::Refused,
            (Ok(whole), Ok(cut)) if whole == cut && input.starts_with(&whole) => Verdict::Accepted,
            (whole, cut) => Verdict::Broken(format!("{whole:?} at once, {cut:?} in pieces")),
        }
    },
    seeds: || {
        let seeds = [
            "GET /a HTTP/1.1\r\nHost: a.org\r\n\r\n",
            "POST /a HTTP/1.1\r\nHost: a.org\r\nContent-Length: 3\r\n\r\nabcGET / HTTP/1.0\r\nHost: a\r\n\r\n",
            "POST /a HTTP/1.1\r\nHost: a.org\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nx: y\r\n\r\n",
        ];
        seeds.map(|seed| seed.into()).to_vec()
    },
    words: &[
        "\r\n",
        "\n",
        "\r",
        "\r\n\r\n",
        "Host: a\r\n",
        "Content-Length: 1\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Upgrade: websocket\r\n",
        " ",
        "\0",
    ],
};

fn feed(bytes: &[u8], size: usize) -> Result<Vec<u8>, &'static str> {
    let (mut check, mut out) = (HeadCheck::default(), Vec::new());
    for part in bytes.chunks(size) {
        check.feed(part, &mut out)?;
    }
    Ok(out)
}
