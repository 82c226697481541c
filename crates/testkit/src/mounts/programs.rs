//! Programs as users have them, over a mount in a session. What a sandbox does not have is left out.

use bastide::{Command, CreateOptions, Session, Store};
use serde_json::json;

use super::servers::{Kind, shared, tools};
use super::{Mounting, flaky_proxy, fresh};
use crate::suite::{Context, Outcome, Trial, say, sh, skip};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    git_clones_into_a_mount,
    sqlite_is_right_in_a_mount,
    tar_unpacks_into_a_mount,
    pip_installs_into_a_mount,
    pandas_reads_parquet_from_a_mount,
    a_mount_does_as_a_plain_folder_does,
    nothing_synced_is_lost_on_a_bad_way,
    a_save_that_fails_leaves_the_mount,
];

/// Runs a script with a mount `data`, and what the script left in `again` with another mount of the same store: whoever
/// comes next finds what was there. By way of `port`, if it is not the server's own.
async fn run(context: &Context, program: &str, script: &str, port: Option<u16>) -> Outcome {
    let session = context.session().await?;
    if session.exec(sh(&format!("command -v {program}"))).await?.exit.code != 0 {
        return Err(skip(format!("there is no {program} inside")));
    }
    run_in(context, session, script, port).await
}

/// The same in a session that has what the script needs.
async fn run_in(context: &Context, session: Session, script: &str, port: Option<u16>) -> Outcome {
    let server = shared(Kind::Moto)?;
    let mounting = Mounting::new(context, &session)?;
    let mut store = server.store(&fresh("programs"), "s3cr3t");
    if let Some(port) = port {
        store["source"]["endpoint"] = format!("http://127.0.0.1:{port}").into();
    }
    for script in [script, "sh ./again"] {
        mounting.mount("data", server.provider(), store.clone()).await?;
        let output = session.exec(Command::shell(script)).await?;
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert_eq!(output.exit.code, 0, "{said}");
        mounting.unmount("data").await?;
    }
    Ok(session.delete().await?)
}

async fn git_clones_into_a_mount(context: Context) -> Outcome {
    let script = r#"set -eu
cat > again <<'END'
set -eu
export HOME=$PWD GIT_CONFIG_COUNT=3 GIT_CONFIG_KEY_0=user.name GIT_CONFIG_VALUE_0=n
export GIT_CONFIG_KEY_1=user.email GIT_CONFIG_VALUE_1=e@example.org
export GIT_CONFIG_KEY_2=safe.directory GIT_CONFIG_VALUE_2='*'
if ! test -e source; then
  git init -q source; for n in 1 2 3 4 5 6 7 8 9; do seq $n 900 > source/f$n; done
  git -C source add .; git -C source commit -qm one
  git clone -q source data/copy; git -C data/copy fsck --strict
  seq 9 > data/copy/more; git -C data/copy add more; git -C data/copy commit -qm two
fi
git -C data/copy fsck --strict
test -z "$(git -C data/copy status --porcelain)"
test "$(git -C data/copy log --oneline | wc -l)" = 2
END
sh ./again"#;
    run(&context, "git", script, None).await
}

async fn sqlite_is_right_in_a_mount(context: Context) -> Outcome {
    let script = r"cat > make.py <<'END'
import sqlite3
db = sqlite3.connect('data/data.db')
db.execute('create table t(n integer primary key, s text)')
for n in range(10):
    with db:
        db.executemany('insert into t(s) values (?)', [(str(n) * 50,)] * 50)
try:
    with db:
        db.execute('delete from t')
        raise RuntimeError
except RuntimeError:
    pass
END
cat > look.py <<'END'
import sqlite3
db = sqlite3.connect('data/data.db')
assert db.execute('pragma integrity_check').fetchone()[0] == 'ok'
assert db.execute('select count(*) from t').fetchone()[0] == 500
END
echo 'python3 look.py' > again; python3 make.py && python3 look.py";
    run(&context, "python3", script, None).await
}

async fn tar_unpacks_into_a_mount(context: Context) -> Outcome {
    let script = format!(
        "set -eu; mkdir source; n=0; while [ $n -lt {} ]; do mkdir -p source/d$((n % 10)); \
         seq 0 $((n % 50)) > source/d$((n % 10))/f$n; n=$((n + 1)); done
         tar cf all.tar -C source .; tar xf all.tar -C data
cat > again <<'END'
sums() {{ (cd \"$1\"; find . -type f | sort | xargs cksum); }}
[ \"$(sums source)\" = \"$(sums data)\" ]
END
sh ./again",
        context.count(2000)
    );
    run(&context, "tar", &script, None).await
}

/// Whether there is a pip inside.
const HAS_PIP: &str = "python3 -m pip --version";

async fn pip_installs_into_a_mount(context: Context) -> Outcome {
    let session = context.session().await?;
    if session.exec(sh(HAS_PIP)).await?.exit.code != 0 {
        return Err(skip("there is no pip inside"));
    }
    let script = r#"set -eu
cat > make.py <<'END'
import zipfile
with zipfile.ZipFile("some-1.0-py3-none-any.whl", "w") as z:
    for n in range(40):
        z.writestr(f"some/m{n}.py", f"value = {n}\n")
    z.writestr("some/__init__.py", "")
    z.writestr("some-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: some\nVersion: 1.0\n")
    z.writestr("some-1.0.dist-info/WHEEL",
               "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    z.writestr("some-1.0.dist-info/RECORD", "")
END
python3 make.py
python3 -m pip install -q --no-index --no-deps --disable-pip-version-check --no-cache-dir \
  --target data/site some-1.0-py3-none-any.whl
cat > again <<'END'
PYTHONPATH=data/site python3 -c 'import some.m39; assert some.m39.value == 39'
END
sh ./again"#;
    run_in(&context, session, script, None).await
}

/// A package of thousands of files, extension modules and data from PyPI. `cargo xtask test --full` fetches it.
async fn pandas_reads_parquet_from_a_mount(context: Context) -> Outcome {
    let wheels = tools().join("wheels");
    if !context.full || !wheels.exists() {
        return Err(skip("pandas, which is for the big counts, is not installed"));
    }
    let manifest = json!({"entries": {"wheels": {"type": "local_dir", "src": "wheels"}}});
    let options = CreateOptions::default().base_dir(tools());
    let session = context.client().create(&bastide::model::lax::read(&manifest)?, options).await?;
    if session.exec(sh(HAS_PIP)).await?.exit.code != 0 {
        return Err(skip("there is no pip inside"));
    }
    let script = r#"set -eu
python3 -m pip install -q --no-index --find-links wheels --disable-pip-version-check --no-cache-dir \
  --no-compile --target data/site pandas pyarrow
cat > make.py <<'END'
import pandas
frame = pandas.DataFrame({"n": range(200_000), "s": [str(n % 977) for n in range(200_000)]})
frame.to_parquet("data/frame.parquet", row_group_size=20_000)
END
cat > look.py <<'END'
import pandas
frame = pandas.read_parquet("data/frame.parquet", columns=["s"])
assert (len(frame), frame["s"][199_999]) == (200_000, str(199_999 % 977))
some = pandas.read_parquet("data/frame.parquet", filters=[("n", ">=", 150_000), ("n", "<", 150_010)])
assert list(some["n"]) == list(range(150_000, 150_010))
END
echo 'PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=data/site python3 look.py' > again
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=data/site python3 make.py
sh ./again"#;
    run_in(&context, session, script, None).await
}

/// The same random operations in the mount and in a plain folder.
const RANDOM: &str = r"
import os, random, sys
rng = random.Random(int(sys.argv[1]))
names = ['a', 'b', 'A', '\u00e4 %+&', ' c ', 'd.txt']
def path():
    return '/'.join(rng.choice(names) for _ in range(rng.randint(1, 3)))
def attempt(root, kind, one, other, data, at):
    first, second = root + '/' + one, root + '/' + other
    try:
        if kind <= 2:
            with open(first, 'wb') as f: f.write(data)
        elif kind == 3:
            with open(first, 'ab') as f: f.write(data)
        elif kind == 4:
            with open(first, 'r+b') as f: f.seek(at); f.write(data)
        elif kind == 5: os.truncate(first, at)
        elif kind == 6: os.mkdir(first)
        elif kind == 7: os.unlink(first)
        elif kind == 8: os.rmdir(first)
        elif kind == 9: os.rename(first, second)
        elif kind == 10:
            with open(first, 'rb') as f: return f.read()
        else: return os.path.isfile(first) and os.stat(first).st_size
    except OSError as error:
        return error.errno
def shape(root):
    found = {}
    for folder, folders, files in os.walk(root):
        for name in folders: found[os.path.relpath(os.path.join(folder, name), root)] = None
        for name in files:
            with open(os.path.join(folder, name), 'rb') as f:
                found[os.path.relpath(os.path.join(folder, name), root)] = f.read()
    return found
os.makedirs('plain', exist_ok=True)
for number in range(int(sys.argv[2])):
    size = rng.choice([0, 1, 100, 5000, 70000])
    data = bytes([rng.randint(0, 255)]) * size
    step = (rng.randint(0, 11), path(), path(), data, rng.randint(0, 80000))
    wanted, got = attempt('plain', *step), attempt('data', *step)
    told = [seen if isinstance(seen, int) else 'bytes' for seen in (wanted, got)]
    assert wanted == got, (number, step[:3], told)
assert shape('plain') == shape('data')
";

async fn a_mount_does_as_a_plain_folder_does(context: Context) -> Outcome {
    let seed = uuid::Uuid::new_v4().as_u128() % 1_000_000;
    let steps = if context.full { 100_000 } else { 2000 };
    let script = format!(
        "cat > steps.py <<'END'{RANDOM}END
echo 'python3 steps.py 0 0' > again; echo seed {seed}; python3 steps.py {seed} {steps}"
    );
    run(&context, "python3", &script, None).await
}

async fn nothing_synced_is_lost_on_a_bad_way(context: Context) -> Outcome {
    let port = flaky_proxy::to(shared(Kind::Moto)?.port)?;
    // What fails says so, and is tried again by whoever wants it.
    let script = r"set -u; mkdir plain; n=0
while [ $n -lt 30 ]; do seq $n 3000 > plain/f$n; tries=0
  until dd if=plain/f$n of=data/f$n bs=64k conv=fsync 2>/dev/null
  do tries=$((tries + 1)); [ $tries -lt 20 ] || exit 3; done
  n=$((n + 1))
done
cat > again <<'END'
for f in plain/*; do n=0
  until cmp -s $f data/${f#plain/}; do n=$((n + 1)); [ $n -lt 20 ] || exit 4; done
done
END
sh ./again";
    run(&context, "cmp", script, Some(port)).await
}

async fn a_save_that_fails_leaves_the_mount(context: Context) -> Outcome {
    let server = shared(Kind::Moto)?;
    let session = context.session().await?;
    let mounting = Mounting::new(&context, &session)?;
    let store = server.store(&fresh("saved"), "s3cr3t");
    mounting.mount("data", server.provider(), store).await?;
    say(&session, "echo one > data/a; seq 100000 > own").await?;
    let scratch = tempfile::tempdir()?;
    let home = scratch.path().join("home");
    std::fs::create_dir(&home)?;
    let snapshots = Store::open(&home)?;
    // Nothing can be written there any more.
    std::fs::rename(&home, scratch.path().join("away"))?;
    std::fs::write(&home, "")?;
    let saved = session.snapshots(&snapshots).save("one", None).await;
    assert!(saved.is_err(), "it was saved nowhere");
    assert_eq!(say(&session, "cat data/a && echo two > data/b && ls data").await?, "one\na\nb\n");
    Ok(session.delete().await?)
}
