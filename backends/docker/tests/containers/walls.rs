//! What stands around commands in a container, and between them and the guest.

use std::io::Read;

use bastide::model::{Manifest, PathGrant};
use bastide::{Command, CreateOptions, NetworkAccess};
use bastide_testkit::engine::images;
use bastide_testkit::escape::probe;
use bastide_testkit::suite::{Context, Outcome, Trial, TrialError, say, sh};
use bastide_testkit::trials;

use super::engine_failures::Proxy;
use super::setting::{Setting, base, container};

pub(crate) const TRIALS: &[Trial] = trials![
    makes_no_docker_exec_for_its_commands,
    tells_nobody_inside_anything_without_the_token,
    follows_nothing_that_was_put_in_the_place_of_the_socket,
    writes_nothing_of_the_host_through_what_is_ours_inside,
    keeps_the_token_where_nobody_inside_finds_it,
    has_the_capabilities_it_uses_and_no_others,
    gives_guest_and_first_process_filters_of_their_own,
    is_hardened_in_the_engines_own_words,
    opens_walls_by_name_and_says_so,
    keeps_to_a_read_only_root,
    runs_as_one_user_only_where_root_is_forbidden,
    grants_folders_of_the_host_as_binds,
    leaves_nothing_set_id_in_a_granted_folder,
    follows_no_link_that_a_command_planted_to_a_grant,
    publishes_declared_ports_on_loopback_only,
];

/// The engine's own record of what happened.
async fn makes_no_docker_exec_for_its_commands(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    let session = setting.session(base()).await?;
    let name = container(&session);
    let now = || setting.docker(&["info", "--format", "{{.SystemTime}}"]);
    let since = now()?.trim().to_owned();
    for number in 0..20 {
        assert_eq!(say(&session, &format!("echo {number}")).await?, format!("{number}\n"));
    }
    session.files().write("file", "content").await?;
    let until = now()?.trim().to_owned();
    let filter = format!("container={name}");
    let events = ["events", "--since", &since, "--until", &until, "--filter", &filter];
    assert_eq!(setting.docker(&events)?, "");
    Ok(session.delete().await?)
}

async fn tells_nobody_inside_anything_without_the_token(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    let session = setting.probed().await?;
    let attempt = Command::new(["./probe", probe::FLAG, "guest", "/.bastide/host/guest.sock"]);
    let output = session.exec(attempt).await?;
    assert_eq!(String::from_utf8(output.stdout)?, "connected\nheard 0 bytes\n");
    // Nobody but root even gets there.
    let attempt = Command::new(["./probe", probe::FLAG, "guest", "/.bastide/host/guest.sock"]);
    let output = session.exec(attempt.user("nobody")).await?;
    assert_eq!(String::from_utf8(output.stdout)?, "cannot connect\n");
    assert_eq!(say(&session, "echo here").await?, "here\n");
    Ok(session.delete().await?)
}

async fn follows_nothing_that_was_put_in_the_place_of_the_socket(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    let session = setting.session(base()).await?;
    let run = setting.home.path().join("sessions").join(session.id().as_str()).join("run");
    let place = run.join("guest.sock");
    let daemon = setting.host.strip_prefix("unix://").ok_or("a daemon elsewhere")?;
    let tricks: [&(dyn Fn() -> std::io::Result<()> + Sync); 4] = [
        &|| std::os::unix::fs::symlink(daemon, &place),
        &|| std::os::unix::fs::symlink("/proc/self/exe", &place),
        &|| std::fs::write(&place, "no socket"),
        &|| Ok(()),
    ];
    for (number, trick) in tricks.iter().enumerate() {
        drop(std::fs::remove_file(&place));
        trick()?;
        let again = session.reconnect().await.map(drop).map_err(|error| error.kind());
        assert_eq!(again, Err(bastide::ErrorKind::BackendLost), "{number}");
    }
    // Somebody else who listens there hears nothing.
    let liar = std::os::unix::net::UnixListener::bind(&place)?;
    let received = std::thread::spawn(move || {
        let mut all = Vec::new();
        liar.accept()?.0.read_to_end(&mut all).map(|_| all)
    });
    let again = session.reconnect().await.map(drop).map_err(|error| error.kind());
    assert_eq!(again, Err(bastide::ErrorKind::BackendLost));
    assert_eq!(received.join().map_err(|_| "nobody listened")??, b"");
    assert_eq!(say(&session, "echo still here").await?, "still here\n");
    Ok(session.delete().await?)
}

/// Tries, as root, to put things into every folder of ours: more than may be there, a program with a
/// set-id bit, a device, a link. What cannot be put anywhere is said with the folder.
const PLANT: &str = "for f in $(find /.bastide -type d); do
    ( head -c 2000000 /dev/zero > $f/large ) 2>/dev/null && echo $f large
    { cp /bin/true $f/suid && chmod 4755 $f/suid && $f/suid; } 2>/dev/null && echo $f suid
    ln -s /etc/passwd $f/link 2>/dev/null; mkfifo $f/pipe 2>/dev/null; mkdir $f/deep 2>/dev/null
done
mv /.bastide/host/guest.sock /.bastide/host/gone 2>/dev/null && echo socket; true";

async fn writes_nothing_of_the_host_through_what_is_ours_inside(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    let far = Setting::new(&Proxy::start()?.host)?;
    for (setting, is_near) in [(&setting, true), (&far, false)] {
        let mut options = base();
        options.read_only_root = true;
        let session = setting.session(options).await?;
        assert_eq!(say(&session, PLANT).await?, "", "near: {is_near}");
        let folder = setting.home.path().join("sessions").join(session.id().as_str());
        let run = std::fs::read_dir(folder.join("run")).into_iter().flatten();
        let names = run.map(|entry| Ok(entry?.file_name())).collect::<std::io::Result<Vec<_>>>()?;
        let want: &[&str] = if is_near { &["guest.sock"] } else { &[] };
        assert_eq!(names, want, "near: {is_near}");
        // Of all that is shown of a file system elsewhere, only the workspace can be written to.
        let writable = "awk '$4 != \"/\" && $6 ~ /^rw/ && $5 !~ /^\\/proc\\// { print $5 }' \
                        /proc/self/mountinfo";
        assert_eq!(say(&session, writable).await?, "/workspace\n", "near: {is_near}");
        if is_near {
            // It is where it was, for everybody who comes.
            let again = session.reconnect().await?;
            assert_eq!(say(&again, "echo here").await?, "here\n");
        }
        session.delete().await?;
    }
    Ok(())
}

async fn keeps_the_token_where_nobody_inside_finds_it(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    let session = setting.session(base()).await?;
    let folder = setting.home.path().join("sessions").join(session.id().as_str());
    let token = std::fs::read(folder.join("token"))?;
    let hex: String = token.iter().map(|byte| format!("{byte:02x}")).collect();
    let seen = setting.docker(&["inspect", &container(&session)])?;
    assert!(!seen.contains(&hex));
    let line = "cat /proc/*/environ /proc/*/cmdline 2>/dev/null";
    let inside = session.exec(sh(line)).await?.stdout;
    assert!(!inside.windows(token.len()).any(|window| window == token));
    assert_eq!(say(&session, "find /.bastide -type f").await?, "/.bastide/bin/guest\n");
    Ok(session.delete().await?)
}

async fn has_the_capabilities_it_uses_and_no_others(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    let session = setting.session(base()).await?;
    // CHOWN DAC_OVERRIDE FOWNER KILL SETGID SETUID; then FSETID and NET_BIND_SERVICE besides.
    let status = "grep -E '^Cap(Eff|Bnd)' | cut -f2";
    let (six, eight) = ("00000000000000eb", "00000000000004fb");
    let first = say(&session, &format!("cat /proc/1/status | {status}")).await?;
    assert_eq!(first, format!("{six}\n{eight}\n"));
    let own = say(&session, &format!("cat /proc/self/status | {status}")).await?;
    assert_eq!(own, format!("{eight}\n{eight}\n"));
    Ok(session.delete().await?)
}

/// What the kernel says of a process: whether it may gain privileges, and behind how many filters it is.
fn confinement(status: &str) -> Result<(bool, u32), TrialError> {
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map(str::trim).ok_or_else(|| format!("no {name} in {status}"))
    };
    Ok((field("NoNewPrivs:")? == "0", field("Seccomp_filters:")?.parse()?))
}

async fn gives_guest_and_first_process_filters_of_their_own(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    for gains_privileges in [false, true] {
        let mut options = base();
        options.new_privileges = gains_privileges;
        let session = setting.session(options).await?;
        let name = container(&session);
        let status = |pid: &str| -> Result<(bool, u32), TrialError> {
            let path = format!("/proc/{pid}/status");
            confinement(&setting.docker(&["exec", &name, "cat", &path])?)
        };
        // A process that the engine started has the engine's filter alone.
        let (_, engines) = status("self")?;
        let guest = "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline | grep -q . &&
            grep -q '^PPid:.1$' $p/status && echo ${p#/proc/}; done | sort -n | head -n1";
        let guest = setting.docker(&["exec", &name, "sh", "-c", guest])?;
        let (first, guest) = (status("1")?, status(guest.trim())?);
        match gains_privileges {
            false => assert_eq!((first, guest), ((false, engines + 1), (false, engines + 2))),
            // Commands would inherit what the first process has.
            true => assert_eq!((first, guest), ((true, engines), (false, engines + 1))),
        }
        assert_eq!(say(&session, "echo works").await?, "works\n");
        session.delete().await?;
    }
    Ok(())
}

async fn is_hardened_in_the_engines_own_words(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    let session = setting.session(base()).await?;
    let format = "{{.HostConfig.CapDrop}} {{.HostConfig.SecurityOpt}} {{.HostConfig.PidsLimit}} \
                  {{.HostConfig.NetworkMode}} {{.HostConfig.Privileged}} {{.HostConfig.Init}} \
                  {{.HostConfig.LogConfig.Type}} {{.Config.StopSignal}}";
    let seen = setting.docker(&["inspect", "--format", format, &container(&session)])?;
    assert_eq!(seen.trim(), "[ALL] [no-new-privileges] 4096 none false false none SIGKILL");
    let walls = session.receipt().walls.join("\n");
    for wall in ["no new privileges", "seccomp: the engine's", "4096 processes", "own network"] {
        assert!(walls.contains(wall), "{wall}: {walls}");
    }
    Ok(session.delete().await?)
}

async fn opens_walls_by_name_and_says_so(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    let mut options = base();
    options.cap_add = vec!["SYS_PTRACE".to_owned()];
    options.seccomp_unconfined = true;
    options.pids = Some(100);
    let session = setting.session(options).await?;
    let open = session.receipt().not_enforced.join("\n");
    assert!(open.contains("SYS_PTRACE") && open.contains("seccomp: unconfined"), "{open}");
    let line = "grep -E '^(CapEff|Seccomp):' /proc/self/status | cut -f2";
    assert_eq!(say(&session, line).await?, "00000000000804fb\n0\n");
    session.delete().await?;

    let mut options = base();
    options.new_privileges = true;
    let session = setting.session(options).await?;
    assert_eq!(say(&session, "grep NoNewPrivs /proc/self/status").await?, "NoNewPrivs:\t0\n");
    assert!(session.receipt().not_enforced.join("\n").contains("new privileges"));
    Ok(session.delete().await?)
}

async fn keeps_to_a_read_only_root(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    let mut options = base();
    options.read_only_root = true;
    let client = setting.client(options)?;
    let detached = CreateOptions::default().detached();
    let session = client.create(&Manifest::default(), detached).await?;
    let id = session.id().clone();
    assert_ne!(session.exec(sh("echo x > /etc/x")).await?.exit.code, 0);
    assert_eq!(say(&session, "echo y > /tmp/y; cat /tmp/y").await?, "y\n");
    session.files().write("file", "kept").await?;
    drop(session);
    client.stop(&id).await?;
    let session = client.resume(&id).await?;
    assert_eq!(session.files().read("file").await?, "kept");
    session.delete().await?;
    let volumes = setting.docker(&["volume", "ls", "--quiet"])?;
    assert!(!volumes.contains(id.as_str()), "its volume is gone");
    Ok(())
}

async fn runs_as_one_user_only_where_root_is_forbidden(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    let mut options = base();
    options.only_user = Some("1000:1001".to_owned());
    let client = setting.client(options.clone())?;
    // Nobody but root could make a folder at the top.
    let manifest = Manifest { root: "/tmp/work".to_owned(), ..Manifest::default() };
    let session = client.create(&manifest, CreateOptions::default()).await?;
    assert_eq!(say(&session, "id -u; id -g").await?, "1000\n1001\n");
    let status = "grep -hE '^(Uid|CapBnd|CapEff):' /proc/1/status | tr -s '\\t' ' '";
    let none = "0000000000000000";
    let first = say(&session, status).await?;
    assert_eq!(first, format!("Uid: 1000 1000 1000 1000\nCapEff: {none}\nCapBnd: {none}\n"));
    session.files().write("file", "x").await?;
    assert_eq!(say(&session, "stat -c %u file").await?, "1000\n");
    let other = session.exec(sh("true").user("nobody")).await.map_err(|error| error.kind());
    assert_eq!(other.map(|output| output.exit.code), Err(bastide::ErrorKind::Unsupported));
    assert!(session.receipt().not_enforced.join("\n").contains("one user only"));
    session.delete().await?;
    options.only_user = Some("0".to_owned());
    assert!(setting.session(options).await.is_err(), "root is not one of many");
    Ok(())
}

async fn grants_folders_of_the_host_as_binds(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    let (open, closed) = (tempfile::tempdir()?, tempfile::tempdir()?);
    std::fs::write(closed.path().join("file"), "of the host")?;
    let grant = |path: &str, host: Option<&std::path::Path>, read_only| PathGrant {
        path: path.to_owned(),
        read_only,
        description: None,
        host_path: host.map(|host| host.display().to_string()),
    };
    let extra_path_grants = vec![
        grant("/granted/open", Some(open.path()), false),
        grant("/granted/closed", Some(closed.path()), true),
        grant("/srv", None, false),
    ];
    let mut manifest = Manifest { extra_path_grants, ..Manifest::default() };
    let client = setting.client(base())?;
    let session = client.create(&manifest, CreateOptions::default()).await?;
    assert_eq!(say(&session, "cat /granted/closed/file").await?, "of the host");
    assert_ne!(session.exec(sh("echo x > /granted/closed/x")).await?.exit.code, 0);
    session.files().write("/granted/open/new", "from inside").await?;
    assert_eq!(std::fs::read_to_string(open.path().join("new"))?, "from inside");
    // One without a path of the host is the container's own.
    session.files().write("/srv/own", "own").await?;
    assert!(!std::path::Path::new("/srv/own").exists());
    session.delete().await?;

    manifest.extra_path_grants = vec![grant("/workspace/in", Some(open.path()), false)];
    let refused = client.create(&manifest, CreateOptions::default()).await.map(drop);
    let message = refused.map_err(|error| error.to_string()).err().ok_or("it was granted")?;
    assert!(message.contains("must be outside the workspace root"), "{message}");
    Ok(())
}

async fn leaves_nothing_set_id_in_a_granted_folder(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    let folder = tempfile::tempdir()?;
    let grant = PathGrant {
        path: "/granted".to_owned(),
        read_only: false,
        description: None,
        host_path: Some(folder.path().display().to_string()),
    };
    let manifest = Manifest { extra_path_grants: vec![grant], ..Manifest::default() };
    let session = setting.client(base())?.create(&manifest, CreateOptions::default()).await?;
    let line = "cd /granted && cp /bin/sh sh && chmod 755 sh && ! chmod 6755 sh && ! chmod u+s sh";
    say(&session, line).await?;
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(folder.path().join("sh"))?.permissions(),
    );
    assert_eq!(mode & 0o7777, 0o755);
    assert!(session.receipt().walls.join("\n").contains("set-id"), "{:?}", session.receipt());
    Ok(session.delete().await?)
}

async fn follows_no_link_that_a_command_planted_to_a_grant(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    let folder = tempfile::tempdir()?;
    let top = folder.path();
    std::fs::create_dir_all(top.join("open/sub"))?;
    std::fs::create_dir(top.join("secret"))?;
    std::fs::write(top.join("secret/key"), "bastide-canary")?;
    let grant = |path: &str, host: &str| PathGrant {
        path: path.to_owned(),
        read_only: false,
        description: None,
        host_path: Some(top.join(host).display().to_string()),
    };
    let extra_path_grants = vec![grant("/granted/open", "open"), grant("/granted/sub", "open/sub")];
    let manifest = Manifest { extra_path_grants, ..Manifest::default() };
    let client = setting.client(base())?;
    let detached = || CreateOptions::default().detached();
    let session = client.create(&manifest, detached()).await?;
    say(&session, "cd /granted/open && mv sub old && ln -s ../secret sub").await?;
    let id = session.id().clone();
    drop(session);
    client.stop(&id).await?;
    let mut refusals = Vec::new();
    for made in [client.resume(&id).await, client.create(&manifest, detached()).await] {
        match made {
            Err(error) => refusals.push(error),
            Ok(opened) => {
                say(&opened, "echo x > /granted/sub/planted").await?;
                opened.delete().await?;
            }
        }
    }
    assert!(!top.join("secret/planted").exists(), "a file was planted outside");
    assert_eq!(refusals.len(), 2, "the link was followed");
    for error in refusals {
        assert!(error.message().contains("sub is a link"), "{error}");
        assert!(error.hint().is_some(), "{error}");
    }
    client.delete(&id).await?;
    Ok(())
}

async fn publishes_declared_ports_on_loopback_only(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    let client = setting.client(bastide_docker::DockerOptions::new(images::BASE))?;
    let options = CreateOptions::default().network(NetworkAccess::Bridge).exposed_ports([8765]);
    let session = client.create(&Manifest::default(), options).await?;
    let endpoint = session.compat().resolve_exposed_port(8765).await?;
    assert_eq!(endpoint.host, "127.0.0.1");
    let name = container(&session);
    let seen = setting.docker(&["port", &name])?;
    assert_eq!(seen.trim(), format!("8765/tcp -> 127.0.0.1:{}", endpoint.port));
    assert!(session.receipt().not_enforced.join("\n").contains("network: the engine's"));
    Ok(session.delete().await?)
}
