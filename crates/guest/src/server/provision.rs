//! Users and groups that the host wants.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use bastide_proto::accounts::Accounts as RequestedAccounts;
use bastide_proto::{Accepted, End, Fault, FaultKind};

use super::Guest;
use super::blocking::blocking;
use super::call::{Outbox, Refusal, fault};
use super::credentials::with_everything;
use crate::accounts;

const PASSWD: &str = "/etc/passwd";
const GROUP: &str = "/etc/group";

/// Answers a request to make users and groups. Where there can be only one user, others would be names
/// without anybody behind them.
pub(super) async fn run(
    guest: &Arc<Guest>,
    wanted: RequestedAccounts,
    outbox: &mut Outbox,
) -> Result<(), Refusal> {
    if let Some(why) = guest.users.single_user_reason() {
        return Err(Fault::new(FaultKind::Unsupported, why).into());
    }
    outbox.accept(Accepted::default()).await?;
    let end = match blocking(move || provision(&wanted)).await? {
        Ok(()) => End::Done,
        Err(fault) => End::Failed(fault),
    };
    Ok(outbox.end(&end).await?)
}

fn provision(wanted: &RequestedAccounts) -> Result<(), Fault> {
    // Two who read before either writes would lose what one of them made.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let read = |path: &str| match accounts::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        read => read.map_err(|error| fault(&format!("cannot read {path}"), &error)),
    };
    let (passwd, group) = (read(PASSWD)?, read(GROUP)?);
    let (new_passwd, new_group) = accounts::add(&passwd, &group, wanted)
        .map_err(|why| Fault::new(FaultKind::Invalid, why))?;
    // Groups first: a user without its group is worse than a group without its user.
    for (path, before, text) in [(GROUP, group, new_group), (PASSWD, passwd, new_passwd)] {
        if before != text {
            with_everything(|| replace(path, &text))
                .map_err(|error| fault(&format!("cannot write {path}"), &error))?;
        }
    }
    Ok(())
}

/// Replaces one of both files whole, where it really is: a link to it stays.
fn replace(path: &str, text: &[u8]) -> io::Result<()> {
    let place = fs::canonicalize(path).unwrap_or_else(|_| Path::new(path).to_owned());
    let unfinished = place.with_extension("new");
    // Whatever is there was left by somebody who was interrupted.
    drop(fs::remove_file(&unfinished));
    let mut options = fs::File::options();
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o644);
    let mut file = options.write(true).create_new(true).open(&unfinished)?;
    io::Write::write_all(&mut file, text)?;
    match fs::rename(&unfinished, &place) {
        Ok(()) => Ok(()),
        // Where the file is a mount of its own, as in containers, it can only be written over.
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => fs::write(&place, text),
        Err(error) => Err(error),
    }
}
