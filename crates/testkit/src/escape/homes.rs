//! What people keep beside the programs in their homes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use bastide::CreateOptions;
use bastide::model::Manifest;
use tokio::sync::Mutex;

use crate::suite::{Context, Outcome, Trial, TrialError, say, skip};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![shows_nothing_that_lies_beside_bin_in_a_home];

/// What lies beside `bin` under the names that toolchains use.
const BESIDE: [&str; 4] = ["git", "lib", "pkg", "versions"];

/// Somebody's home, which goes with this value as far as it was made for it.
struct Home {
    path: PathBuf,
    made: Vec<PathBuf>,
}

impl Home {
    /// A new one in `/home` where this process may make one, else the caller's own.
    fn find() -> Result<Self, TrialError> {
        if let Ok(folder) = tempfile::tempdir_in("/home") {
            let path = folder.keep();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
            return Ok(Self { made: vec![path.clone()], path });
        }
        let path = std::env::home_dir().ok_or_else(|| skip("the caller has no home"))?;
        Ok(Self { path, made: Vec::new() })
    }

    fn make(&mut self, name: &str) -> Result<PathBuf, TrialError> {
        let path = self.path.join(name);
        fs::create_dir(&path).map_err(|error| skip(format!("{}: {error}", path.display())))?;
        self.made.push(path.clone());
        Ok(path)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        for made in self.made.iter().rev() {
            // A trial has its result; what is left is a folder with a canary in it.
            drop(fs::remove_dir_all(made));
        }
    }
}

/// A program of `~/bin` runs; the neighbours that a toolchain would need are other things in a home.
async fn shows_nothing_that_lies_beside_bin_in_a_home(context: Context) -> Outcome {
    if !context.backend.has_host_files() {
        return Ok(());
    }
    // The caller has one home, whatever the rung.
    static ALONE: Mutex<()> = Mutex::const_new(());
    let _alone = ALONE.lock().await;
    let mut home = Home::find()?;
    let bin = home.make("bin")?;
    let program = bin.join("canary-tool");
    fs::write(&program, "#!/bin/sh\necho ran\n")?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    for name in BESIDE {
        fs::write(home.make(name)?.join("secret"), "bastide-canary")?;
    }
    let search = |folder: &Path| {
        let mut options = CreateOptions::default();
        let path = format!("{}:/usr/bin:/bin", folder.display());
        options.env = vec![("PATH".to_owned(), path)];
        options
    };
    // Its programs are searched; and somebody may search the home itself.
    for (folder, runs) in [(bin.as_path(), "ran\n"), (home.path.as_path(), "")] {
        let session = context.client().create(&Manifest::default(), search(folder)).await?;
        assert_eq!(say(&session, "canary-tool 2>/dev/null || true").await?, runs);
        let line = format!("cat {}/*/secret 2>/dev/null || true", home.path.display());
        assert_eq!(say(&session, &line).await?, "", "with {}", folder.display());
        session.delete().await?;
    }
    Ok(())
}
