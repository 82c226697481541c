//! `--backend docker`. The daemon is the one `cargo xtask test` prepared.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output};

use crate::harness::{Home, text};

/// The image of the trials.
const IMAGE: &str = "bastide-test/base";

/// A home, and the daemon its sessions are on; none where no daemon was prepared.
struct Docker {
    home: Home,
    host: String,
}

impl Docker {
    #[expect(clippy::print_stderr, reason = "a test that shows nothing says so")]
    fn new() -> Option<Self> {
        let host =
            std::env::var_os("BASTIDE_TEST_DOCKER").map(|host| host.to_string_lossy().into_owned());
        if host.is_none() {
            eprintln!("skipped: no Docker daemon was prepared; `cargo xtask test` starts one");
        }
        Some(Self { home: Home::new(), host: host? })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.home.command(arguments);
        command.env("DOCKER_HOST", &self.host);
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn say(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// The containers the daemon has of this home.
    fn containers(&self) -> String {
        let home = std::fs::canonicalize(self.home.path()).unwrap();
        let label = format!("label=bastide.home={}", home.display());
        let mut docker = Command::new("docker");
        docker.args(["--host", &self.host, "ps", "--all", "--quiet", "--filter", &label]);
        text(&docker.output().unwrap().stdout)
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        // Sessions are removed where they are; the home itself does not know the daemon.
        for id in self.home.folders() {
            drop(self.run(&["rm", &id]));
        }
    }
}

#[test]
fn runs_a_command_in_a_container_and_leaves_nothing() {
    let Some(docker) = Docker::new() else { return };
    let run = ["run", "-v", "--backend", "docker", "--image", IMAGE, "--"];
    let line = "echo out; echo err >&2; exit 3";
    let output = docker.run(&[&run[..], &["sh", "-c", line]].concat());
    let stderr = text(&output.stderr);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(3), "out\n".to_owned()));
    assert!(stderr.contains("container by") && stderr.contains("err\n"), "{stderr}");
    assert_eq!(docker.home.folders(), Vec::<String>::new());
    assert_eq!(docker.containers(), "");
}

#[test]
fn many_containers_expire_in_time_with_every_client_killed() {
    let Some(docker) = Docker::new() else { return };
    let create = format!("--backend docker --image {IMAGE}");
    crate::leases::many_expire_in_time(&docker.home, &create);
    for id in docker.home.folders() {
        docker.say(&["rm", &id]);
    }
    assert_eq!(docker.containers(), "");
}

#[test]
fn finds_a_container_again_by_its_name_alone() {
    let Some(docker) = Docker::new() else { return };
    let id = docker.say(&["create", "--backend", "docker", "--image", IMAGE]);
    let id = id.trim();
    docker.say(&["exec", id, "--", "sh", "-c", "echo kept > file"]);
    assert!(docker.say(&["ls"]).contains(id));
    let seen: serde_json::Value =
        serde_json::from_str(&docker.say(&["inspect", "--json", id])).unwrap();
    assert_eq!(seen["backend"], "docker", "{seen}");
    // Whoever comes later needs no daemon's address, nor the backend's name.
    let stopped = docker.home.run(&["stop", id]);
    assert!(stopped.status.success(), "{}", text(&stopped.stderr));
    let resumed = docker.home.run(&["resume", id]);
    assert!(resumed.status.success(), "{}", text(&resumed.stderr));
    assert_eq!(docker.say(&["exec", id, "--", "cat", "file"]), "kept\n");
    docker.say(&["rm", id]);
    assert_eq!(docker.containers(), "");
}

#[test]
fn says_what_is_wrong_with_a_container_before_it_is_made() {
    let Some(docker) = Docker::new() else { return };
    let cases: &[(&[&str], &str)] = &[
        (&["run", "--backend", "docker", "--", "true"], "no image is given"),
        (
            &["run", "--image", IMAGE, "--", "true"],
            "only the backends `docker` and `kubernetes` have containers",
        ),
        (
            &[
                "run",
                "--backend",
                "docker",
                "--image",
                "bastide-test/none",
                "--no-pull",
                "--",
                "true",
            ],
            "has no image",
        ),
    ];
    for (arguments, want) in cases {
        let output = docker.run(arguments);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{arguments:?}: {stderr}");
        assert!(stderr.contains(want), "{arguments:?}: {stderr}");
    }
    assert_eq!(docker.home.folders(), Vec::<String>::new());
}

#[test]
fn explains_a_daemon_that_is_not_there() {
    let home = Home::new();
    let nowhere = format!("unix://{}", home.path().join("none.sock").display());
    let mut run = home.command(&["run", "--backend", "docker", "--image", IMAGE, "--", "true"]);
    let output = run.env("DOCKER_HOST", &nowhere).output().unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{stderr}");
    assert!(stderr.contains("cannot reach the Docker daemon"), "{stderr}");
    let doctor = home.command(&["doctor"]).env("DOCKER_HOST", &nowhere).output().unwrap();
    let said = text(&doctor.stdout) + &text(&doctor.stderr);
    assert!(
        said.contains("docker      is not there") && said.contains("nothing listens there"),
        "{said}"
    );
    assert_eq!(home.folders(), Vec::<String>::new());
}

#[test]
fn sweeps_without_a_daemon_and_says_what_it_did_not_see() {
    let home = Home::new();
    let nowhere = format!("unix://{}", home.path().join("none.sock").display());
    let docker =
        |arguments: &[&str]| home.command(arguments).env("DOCKER_HOST", &nowhere).output().unwrap();
    // As after a session in a container.
    std::fs::create_dir_all(home.path().join("engines")).unwrap();
    let swept = docker(&["sweep"]);
    let stderr = text(&swept.stderr);
    assert_eq!(swept.status.code(), Some(0), "{stderr}");
    assert!(stderr.contains("cannot reach the Docker daemon"), "{stderr}");
}

/// A daemon that is there, and closed to whoever asks: by its socket, or by the folder that is in.
#[test]
fn explains_a_daemon_that_this_user_may_not_talk_to() {
    let home = Home::new();
    let folder = home.path().join("daemon");
    let socket = folder.join("docker.sock");
    std::fs::create_dir(&folder).unwrap();
    let _daemon = UnixListener::bind(&socket).unwrap();
    let host = format!("unix://{}", socket.display());
    let close = |path: &Path, mode| {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    };
    for closed in [&socket, &folder] {
        close(closed, 0o000);
        // Root may everything, unless it does without that.
        let mut ordinary = Command::new("setpriv");
        if rustix::process::geteuid().is_root() {
            ordinary.arg("--bounding-set=-dac_override,-dac_read_search");
        }
        ordinary.arg(env!("CARGO_BIN_EXE_bastide"));
        let mut doctor = home.wrapped(ordinary, &["doctor", "--json"]);
        let output = doctor.env("DOCKER_HOST", &host).output().unwrap();
        close(closed, 0o700);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let docker = &found["docker"];
        let missing = &docker["missing"][0];
        assert_eq!(docker["works"], false, "{docker}");
        let what = missing["what"].as_str().unwrap();
        assert!(what.ends_with("this user may not"), "{}: {what}", closed.display());
        assert_eq!(missing["fix"], "sudo usermod --append --groups docker $USER");
    }
    assert_eq!(home.folders(), Vec::<String>::new());
}

/// The same agent, the same change, on this machine and in a container, wherever it works.
#[test]
fn an_agent_works_in_a_container_as_it_does_here() {
    let Some(docker) = Docker::new() else { return };
    let folder = tempfile::tempdir().unwrap();
    let work = folder.path().canonicalize().unwrap().join("work");
    std::fs::create_dir(&work).unwrap();
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        git.current_dir(&work)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1");
        git.args(["-c", "user.name=Test", "-c", "user.email=test@example.com"]).args(arguments);
        assert!(git.status().unwrap().success(), "{arguments:?}");
    };
    git(&["init", "-q", "--template="]);
    std::fs::write(work.join("README.md"), "one\n").unwrap();
    git(&["add", "-A"]);
    git(&["commit", "-qm", "first"]);
    let line = "echo two >> README.md; mkdir d; echo new > d/new; ln -s d/new link; \
                echo planted > .git/config || true";
    let mut diffs = Vec::new();
    for mode in ["in-place", "worktree", "clone"] {
        for backend in [&["--backend", "local"][..], &["--backend", "docker", "--image", IMAGE]] {
            let folder = ["--json", "--mode", mode, "--workspace", work.to_str().unwrap()];
            let all = [&["agent", "run", "shell"], backend, &folder, &["--", line]].concat();
            let report: serde_json::Value = serde_json::from_str(&docker.say(&all)).unwrap();
            assert_eq!(report["changed_files"].as_array().unwrap().len(), 3, "{mode}: {report}");
            diffs.push(report["diff"].as_str().unwrap().to_owned());
            let config = std::fs::read_to_string(work.join(".git/config")).unwrap();
            assert!(!config.contains("planted"), "{mode}");
            git(&["reset", "-q", "--hard"]);
            git(&["clean", "-qfd"]);
        }
    }
    assert!(diffs.iter().all(|diff| *diff == diffs[0]), "{diffs:?}");
    assert_eq!(docker.containers(), "");
    git(&["fsck", "--strict"]);
    drop(std::fs::remove_dir_all(format!("{}-agents", docker.home.path().display())));
}
