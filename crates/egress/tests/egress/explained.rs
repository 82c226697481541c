//! What the program does is what `explain` says.

use std::fmt::Write;

use bastide_model::document::Format;
use bastide_model::policy::{DecisionReason, Flow, Host, HttpRequest, NormalPath, Policy, Verdict};
use bastide_proto::egress::EgressResponse;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{ProxyFixture, http, set, soon};

const HOSTS: &[&str] = &["a.org", "x.a.org", "y.x.a.org", "b.org"];
const PATTERNS: &[&str] = &["a.org", "*.a.org", "**.a.org", "b.org", "*"];
const GLOBS: &[&str] = &["/acme/**", "/*", "/**/x", "/a*"];
const PATHS: &[&str] = &["/", "/acme/", "/acme/b/x", "/abc", "/acme//x", "/acme/../x", "/q?a=1"];

/// How many policies are tried, and how many requests with each.
const POLICIES: usize = 500;
const REQUESTS: usize = 20;

/// Numbers that are the same in every run.
struct Rng(u64);

impl Rng {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(most).unwrap()).unwrap()
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

fn policy(random: &mut Rng, port: u16) -> String {
    // Every name has an address, whatever the rules; this one decides nothing here.
    let mut text = String::from("rules:\n- allow: '*'\n  ports: [1]\n");
    for _ in 0..1 + random.below(4) {
        let (action, host) = (random.one(&["allow", "allow", "deny"]), random.one(PATTERNS));
        writeln!(text, "- {action}: '{host}'\n  ports: [{port}]\n  protocol: http").unwrap();
        match random.below(3) {
            0 => {
                let method = random.one(&["GET", "POST"]);
                writeln!(text, "  http: [{{methods: [{method}]}}]").unwrap();
            }
            1 => writeln!(text, "  http: [{{paths: ['{}']}}]", random.one(GLOBS)).unwrap(),
            _ => {}
        }
    }
    // Whatever is left is denied, and told so: it is known to be HTTP.
    writeln!(text, "- deny: '*'\n  ports: [{port}]\n  protocol: http\nhosts:").unwrap();
    for host in HOSTS {
        writeln!(text, "  {host}: 127.0.0.2").unwrap();
    }
    text
}

fn expected(policy: &Policy, host: &str, port: u16, method: &str, target: &str) -> u16 {
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    };
    let path = NormalPath::parse(path).unwrap();
    let host = Host::parse(host).unwrap();
    let http = HttpRequest { method, path: &path, query, headers: &[] };
    let found = policy.explain(&Flow { host: &host, port, http: Some(http) });
    match (found.verdict, found.why) {
        (Verdict::Allow, _) => 200,
        (_, DecisionReason::BadRequest) => 400,
        _ => 403,
    }
}

#[tokio::test]
async fn for_random_policies_and_requests() {
    let port = http();
    let mut random = Rng(0x2545_f491_4f6c_dd1d);
    let world = ProxyFixture::new(&policy(&mut random, port), &[port]).await;
    let mut seen = [0; 2];
    for _ in 0..POLICIES {
        let text = policy(&mut random, port);
        assert_eq!(world.ask(set(&text)).await, EgressResponse::Done);
        world.changed().await;
        let parsed = Policy::parse("p.yaml", &text, Format::Yaml).unwrap();
        let host = random.one(HOSTS);
        let mut stream = world.dial(host, port).await;
        for _ in 0..REQUESTS {
            let (method, target) = (random.one(&["GET", "POST"]), random.one(PATHS));
            let code = expected(&parsed, host, port, method, target);
            if code == 400 {
                // Such a connection is closed; it has a test of its own.
                continue;
            }
            let request =
                format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let answer = response(&mut stream).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {code}")), "{text}\n{request}\n{answer}");
            seen[usize::from(code == 200)] += 1;
        }
    }
    assert!(seen.iter().all(|count| *count > POLICIES), "{seen:?}");
}

/// One answer, whose body has a length.
async fn response(stream: &mut tokio::net::TcpStream) -> String {
    let mut all = Vec::new();
    let end = loop {
        let mut room = [0; 4096];
        let count = soon(stream.read(&mut room)).await.unwrap();
        assert_ne!(count, 0, "{}", String::from_utf8_lossy(&all));
        all.extend_from_slice(&room[..count]);
        if let Some(at) = all.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
    };
    let head = String::from_utf8_lossy(&all[..end]).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    let mut left = vec![0; end + length.trim().parse::<usize>().unwrap() - all.len()];
    soon(stream.read_exact(&mut left)).await.unwrap();
    all.extend(left);
    String::from_utf8_lossy(&all).into_owned()
}
