//! Copies a project in, builds it there, and copies the result out.
//!
//! `cargo run -p bastide --example copy_project`

#![expect(clippy::print_stdout, reason = "an example shows what it got")]

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bastide::model::{Entry, Manifest};
use bastide::{Client, Command, CreateOptions, FileKind, Session};
use bastide_local::LocalBackend;

const BUILD: &str = "cd project && mkdir -p out/parts && cat src/*.txt > out/all.txt && \
                     for file in src/*.txt; do wc -c < $file > out/parts/$(basename $file); done";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let host = std::env::temp_dir().join(format!("bastide-example-{}", std::process::id()));
    fs::create_dir_all(host.join("project/src"))?;
    for name in ["one", "two", "three"] {
        fs::write(host.join(format!("project/src/{name}.txt")), format!("{name}\n"))?;
    }
    let base = host.canonicalize()?;

    let backend = LocalBackend::new(std::env::temp_dir().join("bastide-example"))?;
    let mut manifest = Manifest::default();
    // What is copied is named beneath the base folder, and nothing beside it is read.
    manifest.entries.insert("project".to_owned(), Entry::local_dir("project"));
    let options = CreateOptions::default().base_dir(base.clone());
    let session = Client::new(Arc::new(backend)).create(&manifest, options).await?;

    let output = session.exec(Command::shell(BUILD).timeout(Duration::from_secs(30))).await?;
    println!("the build ended with {}", output.exit.code);
    let copied = copy_out(&session, "project/out", &base.join("result")).await?;
    for path in copied {
        println!("{}: {:?}", path.strip_prefix(&base)?.display(), fs::read_to_string(&path)?);
    }

    session.delete().await?;
    Ok(fs::remove_dir_all(host)?)
}

/// Copies a folder of a session to a folder of this machine, and says which files came.
///
/// What a session says is not to be believed: a name is taken only if it is one, and links are left.
async fn copy_out(
    session: &Session,
    from: &str,
    to: &Path,
) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let mut folders = vec![(from.to_owned(), to.to_owned())];
    let mut copied = Vec::new();
    while let Some((from, to)) = folders.pop() {
        fs::create_dir_all(&to)?;
        for entry in session.files().ls(&from).await? {
            let name = entry.path.rsplit('/').next().unwrap_or_default();
            if matches!(name, "" | "." | "..") {
                continue;
            }
            let (inside, outside) = (format!("{from}/{name}"), to.join(name));
            match entry.kind {
                FileKind::Dir => folders.push((inside, outside)),
                FileKind::File => {
                    fs::write(&outside, session.files().read(&inside).await?)?;
                    copied.push(outside);
                }
                _ => {}
            }
        }
    }
    copied.sort();
    Ok(copied)
}
