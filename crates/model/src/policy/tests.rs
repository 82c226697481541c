//! Tests of whole policies: what is refused, and 10,000 random ones against a second implementation.

use std::fmt::Write;

use serde_json::json;

use super::*;

fn parse(text: &str) -> Result<Policy> {
    Policy::parse("policy.yaml", text, Format::Yaml)
}

fn refusal(text: &str) -> String {
    match parse(text) {
        Ok(policy) => panic!("{text} is read as {policy:?}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn points_at_what_is_wrong() {
    let many: String = (1..=513).map(|port| format!("{port},")).collect();
    for (text, line, said) in [
        ("rules:\n- allow: a.org\n  port: 1\n", 3, "unknown key `port`; did you mean `ports`?"),
        ("rule: []\n", 1, "did you mean `rules`?"),
        ("rules:\n- allow: 'a*.org'\n", 2, "rules.0.allow: \"a*.org\" is no pattern"),
        ("rules:\n- allow: [a.org, 'b..c']\n", 2, "rules.0.allow.1"),
        ("rules:\n- allow: a.org\n  ports: [0]\n", 3, "a number from 1 to 65535"),
        ("rules:\n- allow: a.org\n  ports: [65536]\n", 3, "a number from 1 to 65535"),
        ("rules:\n- allow: a.org\n  ports: ['9-8']\n", 3, "ends before it begins"),
        (&format!("rules:\n- allow: a.org\n  ports: [{many}]\n"), 1, "at most 512 ports"),
        ("rules:\n- allow: a.org\n  ports: ['1-65535']\n", 1, "at most 512 ports"),
        ("rules:\n- allow: a.org\n  deny: b.org\n", 2, "one of `allow`, `deny` and `ask`"),
        ("rules:\n- ports: [1]\n", 2, "a rule says `allow`, `deny` or `ask`"),
        ("rules:\n- allow: []\n", 2, "name at least one host"),
        ("secrets:\n  A: {env: A, hosts: [a.org]}\n", 2, "`from` is missing"),
        ("secrets:\n  A: {from: 'env:A'}\n", 2, "no rule uses this secret"),
        ("secrets:\n  A: {from: 'http://a'}\n", 2, "a source is env:NAME"),
        ("secrets:\n  A: {from: 'env:A', env: A}\n", 2, "needs `hosts`"),
        ("secrets:\n  A: {from: 'env:A', env: A, hosts: ['*']}\n", 2, "name the hosts"),
        (
            "rules:\n- allow: a.org\n  inject: [{header: x, value: '${B}'}]\n",
            3,
            "no secret is called `B`",
        ),
        (
            "rules:\n- allow: a.org\n  ports: [80]\n  inject: [{header: x, value: y}]\n",
            2,
            "nowhere in the clear",
        ),
        ("rules:\n- allow: a.org\n  ports: [8]\n  http: [{}]\n", 2, "say `protocol: tls`"),
        (
            "rules:\n- allow: a.org\n  protocol: tcp\n  http: [{}]\n",
            2,
            "with `protocol: tcp` nothing is read",
        ),
        ("rules:\n- allow: a.org\n  http: [{paths: ['a']}]\n", 3, "is no path"),
        ("rules:\n- allow: a.org\n  http: [{methods: [CONNECT]}]\n", 3, "never allowed"),
        ("rules:\n- deny: a.org\n  reason: \"a\\nb\"\n", 3, "a reason is one line"),
        ("hosts: {a.org: nowhere}\n", 1, "is no address"),
        ("upstream: {proxy: 'https://p:1'}\n", 1, "write http://HOST:PORT"),
        ("limits: {connections: 0}\n", 1, "from 1 to 256"),
        ("version: 2\n", 1, "version 2 is unknown"),
    ] {
        let message = refusal(text);
        let place = format!("policy.yaml:{line}:");
        assert!(message.starts_with(&place) && message.contains(said), "{text}: {message}");
    }
}

const WHOLE: &str = "
version: 1
rules:
  - allow: [packages.example.org, '**.files.example.org']
  - allow: '@packages'
  - allow: github.com
    http: [{methods: [get, HEAD], paths: ['/acme/**'], query: {a: '*'}, headers: {X-A: 'b*'}}]
    inject: [{header: Authorization, value: 'Basic ${GH|basic:x-access-token}'}]
  - deny: '**.foo.com'
    reason: internal, ask Ops
  - allow: [db.example.com, 10.20.0.0/16]
    ports: [5432, '6000-6010']
    private: true
  - allow: odd.example.com
    ports: 8443
    protocol: tls
    sni: optional
  - ask: '*'
secrets:
  GH: {from: 'env:GITHUB_TOKEN'}
  KEY: {from: 'file:/run/keys/openai', env: KEY, hosts: [api.openai.com]}
hosts: {git.corp: 10.1.2.3}
upstream: {proxy: 'http://proxy.corp:3128', no_proxy: [corp], roots: /etc/ca.pem, dns: '10.0.0.53'}
limits: {connections: 16, idle_seconds: 30, bytes: 10737418240}
ask_seconds: 5
";

#[test]
fn reads_again_what_it_wrote() {
    let policy = parse(WHOLE).unwrap();
    assert_eq!(
        policy.rules.iter().map(|rule| rule.line).collect::<Vec<_>>(),
        [4, 5, 6, 9, 11, 14, 18]
    );
    let text = policy.to_value().to_string();
    assert_eq!(Policy::from_json(&text).unwrap(), policy);
    assert!(text.contains("\"env:GITHUB_TOKEN\""));
    let ports: Vec<u16> = [80, 443, 5432].into_iter().chain(6000..=6010).chain([8443]).collect();
    assert_eq!(policy.ports(), ports);
    let read: Vec<String> = policy.read_hosts().iter().map(ToString::to_string).collect();
    assert_eq!(read, ["github.com", "api.openai.com"]);
}

#[test]
fn stands_on_a_floor() {
    let floor = parse("rules:\n- deny: bad.org\nlimits: {connections: 2}\n").unwrap();
    let own = parse("rules:\n- allow: [bad.org, good.org]\n  floor: true\n").unwrap();
    let both = own.with_floor(&floor);
    let decide = |name: &str| {
        let host = Host::parse(name).unwrap();
        let found = both.explain(&Flow { host: &host, port: 443, http: None });
        (found.verdict, found.why)
    };
    assert_eq!(decide("bad.org"), (Verdict::Deny, DecisionReason::Floor));
    assert_eq!(decide("good.org"), (Verdict::Allow, DecisionReason::Rule));
    assert!(!both.may_allow_name("bad.org") && both.may_allow_name("good.org"));
    assert_eq!(both.limits.connections, 2);
}

#[test]
fn a_floor_is_not_stepped_over_by_reading_nothing() {
    let floor = parse("rules:\n- deny: a.org\n  http: [{paths: ['/admin/**']}]\n- ask: b.org\n  http: [{methods: [POST]}]\n- deny: c.org\n  protocol: http\n  ports: [8080]\n").unwrap();
    let own = parse(
        "rules:\n- allow: [a.org, b.org, c.org]\n  ports: [443, 5432, 8080]\n  protocol: tcp\n",
    )
    .unwrap();
    let of = |own: &Policy, name: &str, port: u16| {
        let host = Host::parse(name).unwrap();
        let found = own.with_floor(&floor).explain(&Flow { host: &host, port, http: None });
        (found.verdict, found.why, found.read)
    };
    for (name, port) in [("a.org", 443), ("a.org", 5432), ("c.org", 8080)] {
        let (verdict, why, _) = of(&own, name, port);
        assert_eq!((verdict, why), (Verdict::Deny, DecisionReason::Floor), "{name}:{port}");
    }
    // What a floor asks about is read as the floor understands it.
    assert_eq!(of(&own, "b.org", 443), (Verdict::Allow, DecisionReason::Floor, true));
    // What a floor's rule is not about is as it was; what is read is decided by what it says.
    assert_eq!(of(&own, "c.org", 5432), (Verdict::Allow, DecisionReason::Rule, false));
    let read = parse("rules:\n- allow: a.org\n- allow: a.org\n  ports: [8443]\n  protocol: tls\n")
        .unwrap();
    for port in [443, 8443] {
        assert_eq!(of(&read, "a.org", port), (Verdict::Allow, DecisionReason::Rule, true));
    }
    // Among one's own rules the later one is one's own word, too.
    let alone = parse("rules:\n- deny: a.org\n  http: [{paths: ['/admin/**']}]\n- allow: a.org\n  ports: [443]\n  protocol: tcp\n").unwrap();
    let host = Host::parse("a.org").unwrap();
    let found = alone.explain(&Flow { host: &host, port: 443, http: None });
    assert_eq!(found.verdict, Verdict::Allow);
}

#[test]
fn nobody_leads_the_secrets_of_a_floor_elsewhere() {
    let floor = parse("rules:\n- allow: git.org\n  inject: [{header: authorization, value: '${GH}'}]\n- allow: free.org\nsecrets:\n  GH: {from: 'env:GH'}\n  KEY: {from: 'env:KEY', env: KEY, hosts: ['*.api.org']}\n").unwrap();
    for (own, said) in [
        ("rules: []\nhosts: {git.org: 10.0.0.1}\n", "git.org"),
        ("rules: []\nhosts: {x.api.org: 10.0.0.1}\n", "x.api.org"),
        ("rules: []\nupstream: {proxy: 'http://p.org:1'}\n", "upstream"),
        ("rules: []\nupstream: {dns: '10.0.0.1'}\n", "upstream"),
        ("rules: []\nupstream: {roots: /tmp/own.pem}\n", "upstream"),
        ("rules:\n- allow: x.org\nsecrets: {GH: {from: 'env:X', env: X, hosts: [x.org]}}\n", "GH"),
    ] {
        let message = parse(own).unwrap().check_floor(&floor).unwrap_err();
        assert!(message.contains(said), "{own}: {message}");
    }
    let apart = parse("rules:\n- allow: free.org\nhosts: {free.org: 10.0.0.1}\n").unwrap();
    assert_eq!(apart.check_floor(&floor), Ok(()));
    let plain = parse("rules:\n- allow: git.org\n").unwrap();
    let own =
        parse("rules: []\nupstream: {dns: '10.0.0.1'}\nhosts: {git.org: 10.0.0.1}\n").unwrap();
    assert_eq!(own.check_floor(&plain), Ok(()), "a floor without secrets has nothing to lose");
    // Where the floor says itself how the outside is reached, that holds.
    let mut led = floor.clone();
    led.upstream = parse("upstream: {dns: '10.0.0.53'}\n").unwrap().upstream;
    let other = parse("upstream: {dns: '10.0.0.1'}\n").unwrap();
    assert!(other.check_floor(&led).is_err());
    assert_eq!(parse("rules: []\n").unwrap().with_floor(&led).upstream, led.upstream);
}

#[test]
fn takes_presets_for_what_the_machine_says() {
    let policy = parse("rules:\n- allow: ['@pip', own.org]\n").unwrap();
    assert_eq!(policy.presets(), ["pip"]);
    let place = |url: &str| PresetHost::of_url(url).unwrap().configured();
    let found = policy
        .with_presets(|_| {
            Some(vec![place("https://u:p@mirror.corp/simple"), place("http://[fd00::1]:8081/x")])
        })
        .unwrap();
    assert_eq!(
        found.to_value()["rules"],
        json!([
            {"allow": ["own.org"], "line": 2},
            {"allow": ["mirror.corp"], "private": true, "line": 2},
            {"allow": ["fd00::1"], "ports": ["8081"], "protocol": "http", "private": true, "line": 2},
        ])
    );
    let unknown = policy.with_presets(|_| None).unwrap_err();
    assert!(unknown.to_string().contains("stands for nothing"), "{unknown}");
    assert_eq!(PresetHost::of_url("git+ssh://a.org/x"), None);
}

#[test]
fn keeps_packages_of_presets_that_come_by_tls_and_reads_them() {
    let text = "package_cache: true\nrules:\n- allow: ['@pip', own.org]\n- deny: '@pip'\n";
    let policy = parse(text).unwrap();
    let place = |url: &str| PresetHost::of_url(url).unwrap().configured();
    let resolve = |policy: &Policy| {
        let places = vec![place("https://mirror.corp/simple"), place("http://plain.corp:8081/x")];
        policy.with_presets(|_| Some(places.clone())).unwrap()
    };
    let found = resolve(&policy);
    let kept: Vec<_> =
        found.rules.iter().map(|rule| (rule.hosts[0].to_string(), rule.cache)).collect();
    let host = |name: &str, cache: bool| (name.to_owned(), cache);
    let want = [
        host("own.org", false),
        host("mirror.corp", true),
        host("plain.corp", false),
        host("mirror.corp", false),
        host("plain.corp", false),
    ];
    assert_eq!(kept, want);
    assert_eq!(Policy::from_json(&found.to_value().to_string()).unwrap(), found);
    let read: Vec<_> = found.read_hosts().iter().map(ToString::to_string).collect();
    assert_eq!(read, ["mirror.corp"]);
    let reads = |policy: &Policy, host: &str, port: u16| {
        let host = Host::parse(host).unwrap();
        policy.explain(&Flow { host: &host, port, http: None }).read
    };
    assert!(reads(&found, "mirror.corp", 443) && !reads(&found, "own.org", 443));
    let plain = resolve(&Policy { package_cache: false, ..policy });
    assert!(!reads(&plain, "mirror.corp", 443) && plain.read_hosts().is_empty());
    assert!(refusal("rules:\n- deny: a.org\n  cache: true\n").contains("can be kept"));
    assert!(
        refusal("rules:\n- allow: a.org\n  protocol: tcp\n  cache: true\n")
            .contains("nothing is read")
    );
}

/// T17.
#[test]
fn decides_by_the_first_rule_that_fits_and_names_it() {
    let policy =
        parse("rules:\n- allow: jira.foo.com\n- deny: '**.foo.com'\n- allow: '*'\n").unwrap();
    for (name, verdict, rule) in [
        ("jira.foo.com", Verdict::Allow, 0),
        ("a.jira.foo.com", Verdict::Deny, 1),
        ("wiki.foo.com", Verdict::Deny, 1),
        ("foo.com", Verdict::Allow, 2),
        ("example.org", Verdict::Allow, 2),
    ] {
        let host = Host::parse(name).unwrap();
        let found = policy.explain(&Flow { host: &host, port: 443, http: None });
        assert_eq!((found.verdict, found.rule), (verdict, Some(rule)), "{name}");
    }
}

#[test]
fn leads_names_to_private_places_only_where_somebody_says_so() {
    let policy = parse(
        "rules:\n- allow: [a.org, 10.0.0.0/8, 169.254.0.0/16]\n- allow: b.org\n  private: true\n- allow: c.org\nhosts: {c.org: 127.0.0.1}\n",
    )
    .unwrap();
    let check = |name: &str, rule: usize, address: &str, is_own: bool| {
        let host = Host::parse(name).unwrap();
        let owner = if is_own { AddressOwner::ThisMachine } else { AddressOwner::Other };
        policy.check_address(&host, Some(rule), address.parse().unwrap(), owner).is_ok()
    };
    for (name, rule, address, is_own, expected) in [
        ("a.org", 0, "93.184.216.34", false, true),
        ("a.org", 0, "93.184.216.34", true, false),
        ("a.org", 0, "10.1.1.1", false, true),
        ("a.org", 0, "127.0.0.1", false, false),
        ("a.org", 0, "::ffff:10.1.1.1", false, true),
        ("a.org", 0, "169.254.1.1", false, true),
        ("a.org", 0, "169.254.169.254", false, false),
        ("b.org", 1, "192.168.1.1", false, true),
        ("b.org", 1, "169.254.169.254", false, false),
        ("b.org", 1, "fd00:ec2::254", false, false),
        ("c.org", 2, "127.0.0.1", false, true),
        ("c.org", 2, "127.0.0.2", false, false),
        ("c.org", 2, "64:ff9b::7f00:1", false, false),
    ] {
        assert_eq!(check(name, rule, address, is_own), expected, "{name} {address}");
    }
}

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

const PATTERNS: &[&str] =
    &["a.org", "*.a.org", "**.a.org", "*", "b.org", "10.0.0.0/8", "10.1.0.0/16", "::1"];
const HOSTS: &[&str] =
    &["a.org", "x.a.org", "y.x.a.org", "b.org", "xa.org", "10.1.2.3", "10.2.0.1", "::1"];
const GLOBS: &[&str] = &["/acme/**", "/acme/*/x", "/*", "/**/x", "/a*"];
const PATHS: &[&str] = &["/", "/acme", "/acme/", "/acme/b/x", "/x", "/abc", "/acme//x"];
const METHODS: &[&str] = &["GET", "POST"];
const PORTS: &[u16] = &[80, 443, 5432];

/// A rule in the words of the document.
struct Plain {
    action: &'static str,
    hosts: Vec<&'static str>,
    ports: Vec<u16>,
    methods: Vec<&'static str>,
    globs: Vec<&'static str>,
}

fn random_rule(random: &mut Rng) -> Plain {
    let some = |random: &mut Rng, of: &[&'static str]| {
        let count = random.below(3);
        (0..count).map(|_| random.one(of)).collect::<Vec<_>>()
    };
    let mut hosts = some(random, PATTERNS);
    hosts.push(random.one(PATTERNS));
    let is_http = random.below(2) == 0;
    let ports: &[u16] = if is_http { &[80, 443] } else { PORTS };
    Plain {
        action: random.one(&["allow", "allow", "deny", "ask"]),
        hosts,
        ports: (0..random.below(3)).map(|_| random.one(ports)).collect(),
        methods: if is_http { some(random, METHODS) } else { Vec::new() },
        globs: if is_http { some(random, GLOBS) } else { Vec::new() },
    }
}

fn document(rules: &[Plain]) -> String {
    let mut text = String::from("rules:\n");
    for rule in rules {
        writeln!(text, "- {}: {:?}", rule.action, rule.hosts).unwrap();
        if !rule.ports.is_empty() {
            writeln!(text, "  ports: {:?}", rule.ports).unwrap();
        }
        if !(rule.methods.is_empty() && rule.globs.is_empty()) {
            writeln!(text, "  http: [{{methods: {:?}, paths: {:?}}}]", rule.methods, rule.globs)
                .unwrap();
        }
    }
    text
}

/// Label by label, from the right.
fn naive_host(pattern: &str, host: &str) -> bool {
    let is_address = host.parse::<IpAddr>().is_ok();
    match pattern {
        "10.0.0.0/8" => is_address && host.starts_with("10."),
        "10.1.0.0/16" => is_address && host.starts_with("10.1."),
        "::1" => host == "::1",
        "*" => !is_address,
        _ if is_address => false,
        _ => {
            let (pattern, host): (Vec<&str>, Vec<&str>) =
                (pattern.rsplit('.').collect(), host.rsplit('.').collect());
            match pattern.last() {
                Some(&"**") => {
                    let fixed = &pattern[..pattern.len() - 1];
                    host.len() > fixed.len() && host.starts_with(fixed)
                }
                Some(&"*") => {
                    let fixed = &pattern[..pattern.len() - 1];
                    host.len() == pattern.len() && host.starts_with(fixed)
                }
                _ => pattern == host,
            }
        }
    }
}

/// By trying every way to share the path among the parts.
fn naive_glob(glob: &[&str], path: &[&str]) -> bool {
    match glob {
        [] => path.is_empty(),
        ["**"] => !path.is_empty(),
        ["**", rest @ ..] => (0..=path.len()).any(|skip| naive_glob(rest, &path[skip..])),
        [first, rest @ ..] => match path {
            [] => false,
            [segment, beyond @ ..] => {
                let fits = match *first {
                    "*" => !segment.is_empty(),
                    "a*" => segment.starts_with('a'),
                    plain => plain == *segment,
                };
                fits && naive_glob(rest, beyond)
            }
        },
    }
}

fn split(path: &str) -> Vec<&str> {
    path.split('/').skip(1).collect()
}

/// What becomes of a request, or that it is ambiguous.
fn naive(rules: &[Plain], host: &str, port: u16, method: &str, path: &str) -> &'static str {
    for rule in rules {
        let port_fits = match (&*rule.ports, rule.action) {
            ([], "deny") => true,
            ([], _) => port == 80 || port == 443,
            (ports, _) => ports.contains(&port),
        };
        if !port_fits || !rule.hosts.iter().any(|pattern| naive_host(pattern, host)) {
            continue;
        }
        let about_requests = !(rule.methods.is_empty() && rule.globs.is_empty());
        if about_requests && port == 5432 {
            continue;
        }
        if !rule.globs.is_empty() && path.contains("//") {
            return "bad";
        }
        let method_fits = rule.methods.is_empty() || rule.methods.contains(&method);
        let path_fits = rule.globs.is_empty()
            || rule.globs.iter().any(|glob| naive_glob(&split(glob), &split(path)));
        if method_fits && path_fits {
            return rule.action;
        }
    }
    "deny"
}

#[test]
fn decides_as_a_second_implementation_does() {
    let mut random = Rng(0x9e37_79b9_7f4a_7c15);
    let mut allowed = 0;
    for _ in 0..10_000 {
        let count = 1 + random.below(5);
        let rules: Vec<Plain> = (0..count).map(|_| random_rule(&mut random)).collect();
        let text = document(&rules);
        let policy = parse(&text).unwrap();
        let policy = Policy::from_json(&policy.to_value().to_string()).unwrap();
        let (name, port) = (random.one(HOSTS), random.one(PORTS));
        let host = Host::parse(name).unwrap();
        let connection = policy.explain(&Flow { host: &host, port, http: None });
        let mut verdicts = Vec::new();
        for (method, path) in METHODS.iter().flat_map(|m| PATHS.iter().map(move |p| (m, p))) {
            let normal = NormalPath::parse(path).unwrap();
            let http = HttpRequest { method, path: &normal, query: None, headers: &[] };
            let found = policy.explain(&Flow { host: &host, port, http: Some(http) });
            let expected = naive(&rules, name, port, method, path);
            let said = if found.why == DecisionReason::BadRequest {
                "bad"
            } else {
                found.verdict.as_str()
            };
            assert_eq!(said, expected, "{text}\n{name}:{port} {method} {path}");
            verdicts.push(found.verdict);
        }
        let could = verdicts.iter().any(|verdict| *verdict != Verdict::Deny);
        // What some request may have is never refused to its connection.
        assert!(!could || connection.verdict != Verdict::Deny, "{text}\n{name}:{port}");
        if !connection.read {
            // What is not read has one answer for everything on it.
            assert!(verdicts.iter().all(|v| *v == connection.verdict), "{text}\n{name}:{port}");
        }
        let unreachable = !policy.may_allow_name(name) && matches!(host, Host::Name(_));
        assert!(!unreachable || !could, "{text}\n{name}");
        allowed += usize::from(connection.verdict == Verdict::Allow);
    }
    // Neither everything nor nothing: the comparison means something.
    assert!((1_000..9_000).contains(&allowed), "{allowed}");
}
