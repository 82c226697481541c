//! Networks with a policy beside none: what they cost to make, and what passes through them.

use std::io::{self, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command as HostCommand, Stdio};
use std::sync::Arc;
use std::time::Instant;

use bastide::model::Manifest;
use bastide::model::document::Format;
use bastide::model::policy::Policy;
use bastide::{Backend, Client, Command, CreateOptions, NetworkAccess, Session};
use bastide_docker::{DockerBackend, DockerOptions, EngineAddress};
use bastide_local::LocalBackend;
use bastide_testkit::egress::PackageServer;
use bastide_testkit::engine::images;
use serde_json::{Value, json};

use crate::ours::{ensure, failed};
use crate::statistics::percentile;
use crate::verdict;

pub(crate) const TITLE: &str = "a network with a policy";

/// The interpreter that measures from inside, and beside it on the host.
const PYTHON: &str = "/usr/bin/python3";

/// Connects as often as the second argument says to a place, and prints the median milliseconds to the first byte.
const CONNECT: &str = "
import socket, sys, time
times = []
for _ in range(int(sys.argv[2])):
    host, port = sys.argv[1].split(':')
    address = (socket.gethostbyname(host), int(port))
    start = time.perf_counter()
    with socket.create_connection(address) as s:
        s.recv(1)
    times.append(time.perf_counter() - start)
print(sorted(times)[len(times) // 2] * 1000)";

/// Asks for a name as often as the first argument says, and prints the median milliseconds to the answer.
const ASK: &str = "
import socket, sys, time
query = bytes([18, 52, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 4]) + b'host' + bytes([4]) + b'test' + bytes([0, 0, 1, 0, 1])
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(5)
times = []
for _ in range(int(sys.argv[1])):
    start = time.perf_counter()
    s.sendto(query, ('198.18.0.1', 53))
    s.recv(512)
    times.append(time.perf_counter() - start)
print(sorted(times)[len(times) // 2] * 1000)";

/// One thing that was measured: ours, what it stands beside, and what is promised.
#[derive(Debug)]
struct Row {
    what: &'static str,
    unit: &'static str,
    ours: f64,
    beside: Option<f64>,
    promise: &'static str,
    holds: bool,
}

/// What was measured.
#[derive(Debug, Default)]
pub(crate) struct Network {
    rows: Vec<Row>,
}

/// How much is done.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    rounds: usize,
    connections: usize,
    bytes: u64,
    packages: usize,
}

impl Network {
    pub(crate) async fn measure(
        folder: &Path,
        docker: Option<&str>,
        quick: bool,
    ) -> io::Result<Self> {
        let sizes = match quick {
            true => Sizes { rounds: 10, connections: 50, bytes: 64 << 20, packages: 30 },
            false => Sizes { rounds: 60, connections: 150, bytes: 512 << 20, packages: 300 },
        };
        let mut network = Self::default();
        // Each has its own, because a base that is built ahead is one for sessions like the last.
        let local = |name: &str| -> io::Result<Client> {
            let backend = LocalBackend::new(folder.join(name)).map_err(failed)?;
            Ok(Client::new(Arc::new(backend)))
        };
        let (client, plain) = (local("network")?, local("no-network")?);
        let (with, without) = creations(&client, &plain, sizes.rounds).await?;
        network.add(
            "local: create → first output",
            "ms",
            with,
            Some(without),
            "≤ 1.6 × without",
            |r| r <= 1.6,
        );
        if let Some(host) = docker {
            let address = EngineAddress::parse(host, None).map_err(failed)?;
            let options = DockerOptions::new(images::BASE);
            let backend = DockerBackend::new(folder.join("network-docker"), address, options);
            let backend: Arc<dyn Backend> = Arc::new(backend.map_err(failed)?);
            let client = Client::new(backend);
            let (with, without) = creations(&client, &client, sizes.rounds / 5).await?;
            network.add(
                "docker: create → first output",
                "ms",
                with,
                Some(without),
                "≤ 1.1 × without",
                |r| r <= 1.1,
            );
        }
        network.connections(&client, sizes).await?;
        match PackageServer::start(sizes.packages) {
            Ok(server) => {
                network.streams(&client, &server, sizes).await?;
                network.packages(&client, &server).await?;
            }
            Err(error) => return Err(io::Error::other(error.to_string())),
        }
        Ok(network)
    }

    fn add(
        &mut self,
        what: &'static str,
        unit: &'static str,
        ours: f64,
        beside: Option<f64>,
        promise: &'static str,
        holds: impl Fn(f64) -> bool,
    ) {
        let holds = holds(beside.map_or(ours, |beside| ours / beside));
        self.rows.push(Row { what, unit, ours, beside, promise, holds });
    }

    /// The first byte of a connection, an answer to a name, and the proxy's memory.
    async fn connections(&mut self, client: &Client, sizes: Sizes) -> io::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                // Whoever is gone already heard nothing.
                drop(stream.write_all(b"x"));
            }
        });
        let text = format!(
            "rules:\n- allow: host.test\n  ports: [{port}]\nhosts: {{host.test: 127.0.0.1}}\n"
        );
        let session = with_policy(client, &text).await?;
        let pid = client.egress_status(session.id()).await.map_err(failed)?.pid;
        self.add("proxy at rest", "MiB", resident(pid)?, None, "≤ 6 MiB", |mib| mib <= 6.0);
        let count = sizes.connections.to_string();
        let inside =
            inside(&session, &[PYTHON, "-c", CONNECT, &format!("host.test:{port}"), &count])
                .await?;
        let outside = outside(&[PYTHON, "-c", CONNECT, &format!("127.0.0.1:{port}"), &count])?;
        let is_near = inside <= outside + 1.0;
        self.add(
            "connect + first byte",
            "ms",
            inside,
            Some(outside),
            "≤ 3 × direct, ≤ 1 ms more",
            |r| r <= 3.0 && is_near,
        );
        let asked = crate::network::inside(&session, &[PYTHON, "-c", ASK, "100"]).await?;
        self.add("an answer to a name", "ms", asked, None, "≤ 0.5 ms", |ms| ms <= 0.5);
        session.delete().await.map_err(failed)
    }

    /// One stream, passed through and read.
    async fn streams(
        &mut self,
        client: &Client,
        server: &PackageServer,
        sizes: Sizes,
    ) -> io::Result<()> {
        let authority = server.authority_file();
        let passed = server.policy(false).replace("protocol: http", "protocol: tcp");
        let session = with_policy(client, &passed).await?;
        let path = format!("zeros/{}", sizes.bytes);
        let plain = format!("http://packages.test:{}/{path}", server.plain_port());
        let inside = fetch_inside(&session, &plain).await?;
        let direct = format!("http://127.0.0.1:{}/{path}", server.plain_port());
        let outside = fetch_outside(&direct, None)?;
        self.add("a stream passed through", "s", inside, Some(outside), "≥ 0.5 × direct", |r| {
            r <= 2.0
        });
        session.delete().await.map_err(failed)?;
        let session = with_policy(client, &server.policy(true)).await?;
        let safe = format!("https://packages.test:{}/{path}", server.port());
        let inside = fetch_inside(&session, &safe).await?;
        let direct = format!("https://localhost:{}/{path}", server.port());
        let authority = authority.to_string_lossy().into_owned();
        let outside = fetch_outside(&direct, Some(&authority))?;
        self.add(
            "a stream that is read",
            "s",
            inside,
            Some(outside),
            "≥ 0.3 × direct TLS",
            |r| r <= 1.0 / 0.3,
        );
        session.delete().await.map_err(failed)
    }

    /// An installation, passed through and read, beside one on the host's network.
    async fn packages(&mut self, client: &Client, server: &PackageServer) -> io::Result<()> {
        let authority = server.authority().map_err(failed)?;
        let host = CreateOptions::default().network(NetworkAccess::Host);
        let host = client.create(&Manifest::default(), host).await.map_err(failed)?;
        let near = format!("https://localhost:{}", server.port());
        let direct = install(&host, &near, &authority, "--replace-registry-host=always").await?;
        host.delete().await.map_err(failed)?;
        let far = format!("https://packages.test:{}", server.port());
        for (reads, what, promise, most) in [
            (false, "npm ci passed through", "≤ 1.3 × --network host", 1.3),
            (true, "npm ci read", "≤ 1.6 × --network host", 1.6),
        ] {
            let session = with_policy(client, &server.policy(reads)).await?;
            let trusted = if reads { "" } else { authority.as_str() };
            let took = install(&session, &far, trusted, "").await?;
            self.add(what, "s", took, Some(direct), promise, |r| r <= most);
            session.delete().await.map_err(failed)?;
        }
        Ok(())
    }

    pub(crate) fn promises(&self) -> Vec<(&'static str, bool)> {
        self.rows.iter().map(|row| (row.promise, row.holds)).collect()
    }

    pub(crate) fn text(&self) -> String {
        let mut text = format!("{TITLE}\n");
        for row in &self.rows {
            let Row { what, unit, ours, beside, promise, holds } = row;
            let beside = beside.map_or_else(String::new, |beside| {
                format!(" beside {beside:.3} {unit}: {:.2} ×", ours / beside)
            });
            text.push_str(&format!("  {what}: {ours:.3} {unit}{beside}\n"));
            text.push_str(&verdict::lines(&[(*promise, *holds)]));
        }
        text
    }

    pub(crate) fn json(&self) -> Value {
        let row = |row: &Row| {
            let Row { what, unit, ours, beside, promise, holds } = row;
            json!({ "what": what, "unit": unit, "ours": ours, "beside": beside, "promise": promise, "holds": holds })
        };
        json!({ "scenario": TITLE, "rows": self.rows.iter().map(row).collect::<Vec<_>>() })
    }
}

async fn with_policy(client: &Client, text: &str) -> io::Result<Session> {
    let policy = Policy::parse("policy.yaml", text, Format::Yaml).map_err(failed)?;
    let options = CreateOptions::default().policy(policy);
    client.create(&Manifest::default(), options).await.map_err(failed)
}

/// The medians of creations to the first output, with a policy and without, in turns.
async fn creations(policed: &Client, plain: &Client, rounds: usize) -> io::Result<(f64, f64)> {
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for round in 0..=rounds.max(2) {
        for has_policy in [true, false] {
            let started = Instant::now();
            let session = match has_policy {
                true => with_policy(policed, "rules:\n- allow: host.test\n").await?,
                false => crate::ours::new_session(plain).await?,
            };
            let output = session.exec(Command::new(["echo", "hello"])).await.map_err(failed)?;
            let took = started.elapsed().as_secs_f64() * 1e3;
            ensure(output.stdout == b"hello\n", "the first output")?;
            session.delete().await.map_err(failed)?;
            // The first round only warms up.
            if round > 0 {
                if has_policy { with.push(took) } else { without.push(took) }
            }
        }
    }
    Ok((percentile(&with, 50), percentile(&without, 50)))
}

/// How often a stream is tried: the least counts, which is what it can do, not what else the machine did.
const TRIES: usize = 3;

/// The call that prints how many seconds fetching took.
fn curl<'a>(url: &'a str, authority: Option<&'a str>) -> Vec<&'a str> {
    let mut words = vec!["curl", "-sS", "--fail", "-o", "/dev/null", "-w", "%{time_total}"];
    words.extend(authority.into_iter().flat_map(|file| ["--cacert", file]));
    words.push(url);
    words
}

/// The seconds that fetching takes inside.
async fn fetch_inside(session: &Session, url: &str) -> io::Result<f64> {
    let mut least = f64::INFINITY;
    for _ in 0..TRIES {
        least = least.min(inside(session, &curl(url, None)).await?);
    }
    Ok(least)
}

/// The same on the host.
fn fetch_outside(url: &str, authority: Option<&str>) -> io::Result<f64> {
    let mut least = f64::INFINITY;
    for _ in 0..TRIES {
        least = least.min(outside(&curl(url, authority))?);
    }
    Ok(least)
}

/// The number that a program prints inside.
async fn inside(session: &Session, words: &[&str]) -> io::Result<f64> {
    let output = session.exec(Command::new(words.iter().copied())).await.map_err(failed)?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    said.trim().parse().map_err(|_| io::Error::other(format!("{words:?}: {said}{stderr}")))
}

/// The number that a program prints on the host.
fn outside(words: &[&str]) -> io::Result<f64> {
    let (program, arguments) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let output = HostCommand::new(program).args(arguments).stdin(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    said.trim().parse().map_err(|_| io::Error::other(format!("{words:?}: {said}{stderr}")))
}

/// The seconds that an installation takes whose packages are all fetched.
async fn install(session: &Session, at: &str, authority: &str, more: &str) -> io::Result<f64> {
    let files = session.files();
    let (mut trust, mut curl) = (String::new(), String::new());
    if !authority.is_empty() {
        files.write("authority.pem", authority.as_bytes().to_vec()).await.map_err(failed)?;
        "--cafile=$HOME/authority.pem".clone_into(&mut trust);
        "--cacert authority.pem".clone_into(&mut curl);
    }
    let get = format!(
        "export HOME=$PWD; mkdir -p project; for f in package.json package-lock.json; do curl -sS --fail {curl} {at}/$f -o project/$f || exit 1; done"
    );
    let install = format!(
        "export HOME=$PWD; cd project && npm ci --no-audit --no-fund --loglevel=error --cache=$HOME/cache --registry={at}/ {trust} {more}"
    );
    let mut took = 0.0;
    for line in [&get, &install] {
        let started = Instant::now();
        let output = session.exec(Command::shell(line)).await.map_err(failed)?;
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure(output.exit.code == 0, &format!("an installation: {stderr}"))?;
        took = started.elapsed().as_secs_f64();
    }
    Ok(took)
}

/// The memory of a process, in MiB.
fn resident(pid: u32) -> io::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").trim().parse::<f64>().ok());
    Ok(kib.ok_or(io::ErrorKind::NotFound)? / 1024.0)
}
