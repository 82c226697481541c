//! The engines a backend talked to: those that answered, and those that did not.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bastide::{Error, ErrorKind, Result};
use tokio::time::Instant;

use crate::EngineAddress;
use crate::engine::{Engine, SMALL, is_unreachable, silent};
use crate::receipt::EngineInfo;

/// How long an engine that did not answer is not asked again. Whoever asks after many sessions of it waits
/// once; whoever comes later tries again.
const SILENCE: Duration = Duration::from_secs(2);

/// What is known of one engine.
enum EngineState {
    Answered(Box<(Engine, EngineInfo)>),
    /// It did not, at this time, and what was said of that.
    Silent(Instant, String, Option<String>),
}

/// The engines a backend talked to.
#[derive(Default)]
pub(crate) struct Engines {
    known: Mutex<HashMap<EngineAddress, EngineState>>,
    /// Held while one of them is asked for the first time: nobody waits for it beside somebody else.
    asking: tokio::sync::Mutex<()>,
}

impl Engines {
    /// The engine at an address, which is asked if it is not known.
    pub(crate) async fn of(&self, address: &EngineAddress) -> Result<(Engine, EngineInfo)> {
        if let Some(known) = self.known(address) {
            return known;
        }
        let _asking = self.asking.lock().await;
        if let Some(known) = self.known(address) {
            return known;
        }
        let asked = ask(address).await;
        match &asked {
            Ok(answered) => self.note(address, EngineState::Answered(Box::new(answered.clone()))),
            Err(error) if is_unreachable(error) => self.note(address, silence(error)),
            Err(_) => {}
        }
        asked
    }

    /// Notes that an engine that answered before does not any more.
    pub(crate) fn note_silence(&self, address: &EngineAddress) {
        self.note(address, silence(&silent(address)));
    }

    fn known(&self, address: &EngineAddress) -> Option<Result<(Engine, EngineInfo)>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        match known.get(address)? {
            EngineState::Answered(answered) => Some(Ok((**answered).clone())),
            EngineState::Silent(since, message, hint) if since.elapsed() < SILENCE => {
                let error = Error::new(ErrorKind::BackendLost, message.clone());
                let error = error.with_context("reason", "backend_lost");
                Some(Err(match hint {
                    Some(hint) => error.with_hint(hint.clone()),
                    None => error,
                }))
            }
            EngineState::Silent(..) => None,
        }
    }

    fn note(&self, address: &EngineAddress, known: EngineState) {
        let mut all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(address.clone(), known);
    }
}

async fn ask(address: &EngineAddress) -> Result<(Engine, EngineInfo)> {
    let engine = Engine::connect(address).await?;
    let info = engine.ask(SMALL, "ask the daemon about itself", engine.docker.info()).await?;
    Ok((engine, EngineInfo::from(info)))
}

fn silence(error: &Error) -> EngineState {
    EngineState::Silent(Instant::now(), error.message().to_owned(), error.hint().map(str::to_owned))
}

impl fmt::Debug for Engines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engines").finish_non_exhaustive()
    }
}
