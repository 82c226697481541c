//! Programs as users have them.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::harness::{Mounted, drop_pages, may_mount};
use crate::servers::{Kind, Server, skip};

fn sh(folder: &Path, script: &str) -> String {
    let output = Command::new("sh").arg("-euc").arg(script).current_dir(folder).output().unwrap();
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{script}: {}\n{out}{err}", output.status);
    out.into_owned()
}

fn has(program: &str) -> bool {
    let there = Command::new("sh").arg("-c").arg(format!("command -v {program}")).output();
    let there = there.unwrap().status.success();
    if !there {
        skip(program);
    }
    there
}

#[test]
fn git_clones_into_it() {
    if !may_mount() || !has("git") {
        return;
    }
    let Some(server) = Server::start(Kind::Moto) else { return };
    let mount = Mounted::new(server.spec());
    let source = tempfile::tempdir().unwrap();
    let git = "git -c user.name=n -c user.email=e@example.org -c init.defaultBranch=main -c safe.directory=*";
    sh(source.path(), &format!(
        "{git} init -q . && for n in $(seq 60); do mkdir -p d$((n % 7)); seq $n 900 > d$((n % 7))/f$n; done
         {git} add . && {git} commit -qm one && seq 5 > new && {git} add new && {git} commit -qm two"
    ));
    sh(
        &mount.path,
        &format!(
            "{git} clone -q {} copy && cd copy && {git} fsck --strict",
            source.path().display()
        ),
    );
    drop_pages();
    sh(&mount.at("copy"), &format!(
        "{git} fsck --strict && test -z \"$({git} status --porcelain)\" && seq 9 > more && {git} add more
         {git} commit -qm three && {git} fsck && test $({git} log --oneline | wc -l) = 3"
    ));
    let copied = sh(
        &mount.at("copy"),
        "find . -path ./.git -prune -o -type f -print | sort | xargs cat | cksum",
    );
    sh(source.path(), "seq 9 > more");
    let original = sh(
        source.path(),
        "find . -path ./.git -prune -o -type f -print | sort | xargs cat | cksum",
    );
    assert_eq!(copied, original);
}

#[test]
fn sqlite_is_right() {
    if !may_mount() || !has("python3") {
        return;
    }
    let Some(server) = Server::start(Kind::Moto) else { return };
    let mount = Mounted::new(server.spec());
    let script = r#"
import sqlite3, sys
db = sqlite3.connect("data.db")
db.execute("create table t(n integer primary key, s text)")
for n in range(20):
    with db:
        db.executemany("insert into t(s) values (?)", [(str(n) * 50,)] * 50)
try:
    with db:
        db.execute("delete from t")
        raise RuntimeError
except RuntimeError:
    pass
db.close()
"#;
    fs::write(mount.at("make.py"), script).unwrap();
    sh(&mount.path, "python3 make.py");
    drop_pages();
    let count = "import sqlite3; db = sqlite3.connect('data.db'); \
                 print(db.execute('pragma integrity_check').fetchone()[0], db.execute('select count(*) from t').fetchone()[0])";
    assert_eq!(sh(&mount.path, &format!("python3 -c \"{count}\"")).trim(), "ok 1000");
    drop(mount);
    let mount = Mounted::with_cache(server.spec(), None);
    assert_eq!(sh(&mount.path, &format!("python3 -c \"{count}\"")).trim(), "ok 1000");
}

#[test]
fn tar_unpacks_two_thousand_files() {
    if !may_mount() || !has("tar") {
        return;
    }
    let Some(server) = Server::start(Kind::Moto) else { return };
    let mount = Mounted::new(server.spec());
    let source = tempfile::tempdir().unwrap();
    for number in 0..2000 {
        let folder = source.path().join(format!("d{}", number % 10));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(format!("f{number}")), format!("{number}\n").repeat(number % 50))
            .unwrap();
    }
    sh(source.path(), "tar cf ../all.tar . && mv ../all.tar .");
    sh(&mount.path, &format!("tar xf {}", source.path().join("all.tar").display()));
    drop_pages();
    sh(&mount.path, &format!("diff -r . {} --exclude all.tar", source.path().display()));
}

#[test]
fn pip_installs_into_it() {
    if !may_mount() || !has("python3") {
        return;
    }
    let Some(server) = Server::start(Kind::Moto) else { return };
    let pip = crate::servers::tools().join("venv/bin/pip");
    if !pip.exists() {
        return skip("pip");
    }
    let mount = Mounted::new(server.spec());
    let source = tempfile::tempdir().unwrap();
    let wheel = r#"
import zipfile
with zipfile.ZipFile("some-1.0-py3-none-any.whl", "w") as z:
    for n in range(40):
        z.writestr(f"some/m{n}.py", f"value = {n}\n")
    z.writestr("some/__init__.py", "")
    z.writestr("some-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: some\nVersion: 1.0\n")
    z.writestr("some-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    z.writestr("some-1.0.dist-info/RECORD", "")
"#;
    fs::write(source.path().join("make.py"), wheel).unwrap();
    sh(source.path(), "python3 make.py");
    let target = mount.at("site");
    sh(
        source.path(),
        &format!(
            "{} install -q --no-index --no-deps --disable-pip-version-check --target {} some-1.0-py3-none-any.whl",
            pip.display(),
            target.display()
        ),
    );
    drop_pages();
    let value = sh(&target, "python3 -c 'import some.m39; print(some.m39.value)'");
    assert_eq!(value.trim(), "39");
}
