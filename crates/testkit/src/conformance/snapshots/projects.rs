//! What people really have in their workspaces.

use std::time::Duration;

use bastide::{Command, Session};

use super::{restored, store};
use crate::suite::{Context, Outcome, TrialError, skip};

/// Whether a program is there at all.
async fn has(session: &Session, program: &str) -> Result<bool, TrialError> {
    let found = session.exec(Command::shell(&format!("command -v {program}"))).await?;
    Ok(found.exit.code == 0)
}

/// What some lines print, which must not fail.
async fn run(session: &Session, lines: &str) -> Result<String, TrialError> {
    let command = Command::shell(&format!("set -e\n{lines}")).timeout(Duration::from_secs(100));
    let output = session.exec(command).await?;
    if output.exit.code == 0 {
        return Ok(String::from_utf8(output.stdout.to_vec())?);
    }
    let said =
        [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
    Err(format!("it ended with {}: {}", output.exit.code, said.concat()).into())
}

/// Saves what `make` makes, restores it elsewhere, and compares what `look` says in both places.
async fn survives(context: &Context, program: &str, make: &str, look: &str) -> Outcome {
    let (_folder, store) = store()?;
    let first = context.session().await?;
    if !has(&first, program).await? {
        first.delete().await?;
        return Err(skip(format!("{program} is not installed")));
    }
    run(&first, make).await?;
    let before = run(&first, look).await?;
    first.snapshots(&store).save("project", None).await?;
    first.delete().await?;
    let second = restored(context, &store, "project").await?;
    assert_eq!(run(&second, look).await?, before);
    Ok(second.delete().await?)
}

pub(super) async fn brings_back_a_python_environment(context: Context) -> Outcome {
    // Its programs are absolute links out of the workspace; some systems have no pip to put into it.
    let make = "python3 -m venv env >/dev/null 2>&1 || python3 -m venv --clear --without-pip env
        for folder in env/lib/python3*/site-packages; do
            mkdir $folder/kept && echo 'VALUE = 42' > $folder/kept/__init__.py
        done
        env/bin/python -m compileall -q env/lib/python3*/site-packages/kept";
    let look = "env/bin/python -c 'import sys, kept
print(kept.VALUE, sys.prefix != sys.base_prefix)'
        readlink env/bin/python3 env/lib64; find env -name '*.pyc' | wc -l
        if [ -e env/bin/pip ]; then env/bin/python -m pip --version | cut -d' ' -f1,2; fi";
    survives(&context, "python3", make, look).await
}

pub(super) async fn brings_back_a_git_repository(context: Context) -> Outcome {
    let make = "mkdir repo && cd repo && git init -q .
        git config user.email a@b.c && git config user.name Somebody
        for n in 1 2 3 4 5; do echo $n > file$n && git add . && git commit -qm \"commit $n\"; done
        git gc -q && git tag -a -m one v1 HEAD~2 && git branch side HEAD~1
        printf '#!/bin/sh\\n' > run && chmod 755 run && git add run && git commit -qm run
        echo later > file1 && git stash -q && echo staged > file2 && git add file2
        echo dirty > file3 && echo new > untracked && ln -s file4 link";
    let look = "cd repo && git fsck --full --strict > ../fsck 2>&1 && { grep -v dangling ../fsck || true; }
        git status --porcelain && git log --format=%H%d && git stash list
        git diff && git diff --cached && git ls-files --stage";
    survives(&context, "git", make, look).await
}
