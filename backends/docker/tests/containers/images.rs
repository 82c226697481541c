//! Images of every kind: nothing in them is needed.

use bastide::model::Manifest;
use bastide::{Command, CreateOptions, ErrorKind};
use bastide_docker::{DockerOptions, PullPolicy};
use bastide_testkit::engine::images;
use bastide_testkit::suite::{Context, Outcome, Trial, say, skip};
use bastide_testkit::trials;

use super::setting::{Setting, base};

pub(crate) const TRIALS: &[Trial] = trials![
    works_in_an_image_with_nothing_in_it,
    works_in_busybox,
    takes_user_environment_and_volumes_of_the_image,
    says_what_is_wrong_with_an_image,
    runs_behind_another_runtime,
    installs_a_package_in_debian,
    installs_a_package_with_set_id_programs,
];

async fn works_in_an_image_with_nothing_in_it(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    let session = setting.session(DockerOptions::new(images::EMPTY)).await?;
    session.files().write("deep/file", "content").await?;
    assert_eq!(session.files().read("deep/file").await?, "content");
    let names: Vec<_> = session.files().ls(".").await?.into_iter().map(|info| info.path).collect();
    assert_eq!(names, ["/workspace/deep"]);
    // The one program there is, which refuses to be anything without a word.
    let output = session.exec(Command::new(["/.bastide/bin/guest"])).await?;
    assert_eq!(output.exit.code, 1);
    let missing = session.exec(Command::new(["sh"])).await?;
    assert_eq!(missing.exit.code, 127);
    Ok(session.delete().await?)
}

async fn works_in_busybox(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    if !setting.backend(base())?.image_exists(images::BUSYBOX).await? {
        return Err(skip("there is no static busybox on this machine"));
    }
    let session = setting.session(DockerOptions::new(images::BUSYBOX)).await?;
    assert_eq!(say(&session, "echo hello | tr a-z A-Z").await?, "HELLO\n");
    Ok(session.delete().await?)
}

async fn takes_user_environment_and_volumes_of_the_image(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    let session = setting.session(DockerOptions::new(images::SETTINGS)).await?;
    assert_eq!(session.receipt().user, "app (1000)");
    assert_eq!(session.root().as_str(), "/srv", "commands and files start where the image does");
    assert_eq!(say(&session, "pwd; echo $HOME").await?, "/srv\n/home\n");
    assert_eq!(say(&session, "id -u; id -G").await?, "1000\n1001 2000\n");
    assert_eq!(say(&session, "echo $GREETING $PATH").await?, "hello /opt/own:/bin\n");
    // Files are made by whoever runs commands, and root's are out of reach.
    session.files().write("file", "x").await?;
    assert_eq!(say(&session, "stat -c %u:%g file .").await?, "1000:1001\n1000:1001\n");
    say(&session, "echo changed > file").await?;
    let root = session.exec(bastide_testkit::suite::sh("id -u; echo x > /etc/x").user("root"));
    assert_eq!(String::from_utf8(root.await?.stdout)?, "0\n");
    assert_eq!(
        say(&session, "stat -c %u /etc/x; grep -c ' /data ' /proc/self/mounts").await?,
        "0\n1\n"
    );
    let id = session.id().clone();
    session.delete().await?;
    // Whoever chooses a workspace has it.
    let mut own = Manifest::default();
    "/home/own".clone_into(&mut own.root);
    let client = setting.client(DockerOptions::new(images::SETTINGS))?;
    let session = client.create(&own, CreateOptions::default()).await?;
    assert_eq!(say(&session, "pwd").await?, "/home/own\n");
    session.delete().await?;
    let left = setting.docker(&["ps", "--all", "--quiet", "--filter", &format!("name={id}")])?;
    assert_eq!(left, "");
    Ok(())
}

async fn says_what_is_wrong_with_an_image(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    let missing = DockerOptions::new("bastide-test/none-of-that-name").pull(PullPolicy::Never);
    let client = setting.client(missing)?;
    let refused = client.create(&Manifest::default(), CreateOptions::default()).await.map(drop);
    assert_eq!(refused.map_err(|error| error.kind()), Err(ErrorKind::NotFound));
    assert_eq!(client.list().await?.len(), 0, "nothing is left");
    let client = setting.client(DockerOptions::default())?;
    let refused = client.create(&Manifest::default(), CreateOptions::default()).await.map(drop);
    assert_eq!(refused.map_err(|error| error.kind()), Err(ErrorKind::InvalidInput));
    Ok(())
}

/// It has no `openat2`, `pidfd_open`, `clone3` or Landlock.
async fn runs_behind_another_runtime(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    if !setting.docker(&["info", "--format", "{{.Runtimes}}"])?.contains("runsc") {
        return Err(skip("the daemon has no runtime `runsc`"));
    }
    if !std::path::Path::new("/usr/bin/runsc").exists() {
        return Err(skip("runsc is not installed"));
    }
    let mut options = base();
    options.runtime = Some("runsc".to_owned());
    let session = setting.session(options).await?;
    assert!(session.receipt().walls[0].contains("runsc"), "{:?}", session.receipt().walls);
    let version = say(&session, "cat /proc/version").await?;
    assert!(version.starts_with("Linux version 4.4.0"), "not this machine's kernel: {version}");
    assert_eq!(say(&session, "echo hello; pwd").await?, "hello\n/workspace\n");
    session.files().write("deep/file", vec![b'x'; 1_000_000]).await?;
    assert_eq!(session.files().read("deep/file").await?.len(), 1_000_000);
    say(&session, "ln -s /etc/passwd link").await?;
    assert!(session.files().read("link").await.is_err(), "links do not lead out there either");
    let timeout = std::time::Duration::from_millis(500);
    let output = session.exec(bastide_testkit::suite::sh("sleep 7900").timeout(timeout)).await?;
    assert_eq!(output.exit.code, 124);
    let open = session.receipt().not_enforced.join("\n");
    assert!(open.contains("Landlock"), "{open}");
    Ok(session.delete().await?)
}

/// A package of the caller's own, by the package manager of a minimal Debian, as uid 0.
async fn installs_a_package_in_debian(context: Context) -> Outcome {
    // A minimal Debian takes minutes to make: one of the big counts.
    if !context.full {
        return Ok(());
    }
    let setting = Setting::prepared()?;
    let Some(package) = images::make_debian(&setting.host)? else {
        return Err(skip("there is no debootstrap here, or no mirror"));
    };
    let session = setting.session(DockerOptions::new(images::DEBIAN)).await?;
    session.files().write("own.deb", package).await?;
    let line = "apt-get install -y ./own.deb >/dev/null 2>&1; bastide-own; \
                stat -c %U /usr/bin/bastide-own; su nobody -s /bin/sh -c 'id -un'";
    assert_eq!(say(&session, line).await?, "it is installed\nroot\nnobody\n");
    Ok(session.delete().await?)
}

/// Debian's own package, by Debian's own package manager: some of its programs are set-id.
async fn installs_a_package_with_set_id_programs(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    let Some(package) = images::fetch_package("openssh-client")? else {
        return Err(skip("there is no package openssh-client to be had here"));
    };
    let session = setting.session(base()).await?;
    session.files().write("client.deb", package).await?;
    // What it depends on is not there, and neither are the programs that some packages call.
    let line = "mkdir -p /var/lib/dpkg/info /var/lib/dpkg/updates /var/lib/dpkg/triggers &&
        : > /var/lib/dpkg/status && : > /var/lib/dpkg/available &&
        printf '#!/bin/sh\\n' > /bin/dpkg-maintscript-helper && chmod 755 /bin/dpkg-maintscript-helper &&
        dpkg --force-depends --force-bad-path --no-triggers --unpack client.deb > log 2>&1 || cat log >&2
        stat -c '%a %u' /usr/lib/openssh/ssh-keysign";
    assert_eq!(say(&session, line).await?, "4755 0\n");
    Ok(session.delete().await?)
}
