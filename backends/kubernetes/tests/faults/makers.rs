//! Makers that are killed, wherever they are: two minutes later nothing is left.

use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bastide::CreateOptions;
use bastide::model::Manifest;
use bastide_testkit::suite::{Context, Outcome, Trial, client_for};
use bastide_testkit::trials;

use crate::{objects, until};

/// The variable that tells this program to make sessions in a home.
const MAKER: &str = "BASTIDE_TEST_MAKER";

/// How long a killed maker may be outlived.
const GONE: Duration = Duration::from_secs(120);

pub(crate) const TRIALS: &[Trial] = trials![leaves_nothing_when_its_maker_is_killed];

/// Makes a session and holds it, if that is what this process was started for.
pub(crate) fn run_if_asked() -> Option<ExitCode> {
    let home = std::env::var_os(MAKER)?;
    let made = || -> Result<(), bastide_testkit::suite::TrialError> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(async {
            let client = client_for(Arc::new(crate::backend(home.as_ref())?));
            let session = client.create(&Manifest::default(), CreateOptions::default()).await?;
            // Until it is killed.
            std::future::pending::<()>().await;
            drop(session);
            Ok(())
        })
    };
    Some(if made().is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn leaves_nothing_when_its_maker_is_killed(context: Context) -> Outcome {
    let folder = tempfile::tempdir()?;
    let identity = bastide::home_identity(context.backend.home())?;
    let others = format!("bastide.home,bastide.home!={identity}");
    for round in 0..context.count(40) {
        let home = folder.path().join(round.to_string());
        let mut maker = Command::new(std::env::current_exe()?);
        maker.env(MAKER, &home).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut maker = maker.spawn()?;
        // From before the first request until after the session is whole.
        let step = u64::try_from(round)? % 10;
        tokio::time::sleep(Duration::from_millis(150 + 400 * step)).await;
        maker.kill()?;
        maker.wait()?;
    }
    let took = until(GONE, "jobs and pods of killed makers are gone", || {
        Ok(objects("jobs", &others)?.is_empty() && objects("pods", &others)?.is_empty())
    });
    took.await?;
    // No folder is stuck.
    for round in 0..context.count(40) {
        let home = folder.path().join(round.to_string());
        if home.exists() {
            let client = client_for(Arc::new(crate::backend(&home)?));
            client.sweep().await?;
            assert!(client.list().await?.is_empty(), "{:?}", client.list().await?);
        }
    }
    Ok(())
}
