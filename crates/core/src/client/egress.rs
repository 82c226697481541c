//! Networks with a policy, from a client's view.

use bastide_model::policy::Policy;
use bastide_model::receipt::NetworkAccess;
use serde_json::json;

use super::Client;
use super::removal::busy;
use crate::backend::{MachineSpec, SessionId};
use crate::egress::{
    Answer, Approval, Egress, EgressRequest, EgressResponse, EgressStatus, PendingFlow, no_policy,
};
use crate::state::{Record, Stage, Transition, TransitionAttempt};
use crate::{Condition, Error, ErrorKind, Result};

impl Client {
    /// The network of a new session, if it has a policy.
    pub(super) async fn egress_of(
        &self,
        network: &NetworkAccess,
        policy: Option<&Policy>,
        spec: &MachineSpec,
    ) -> Result<Option<Egress>> {
        match (network, policy) {
            (NetworkAccess::Policy, Some(policy)) => {
                self.check_egress(spec)?;
                Egress::new(policy, self.backend.home(), &self.environment).await.map(Some)
            }
            (NetworkAccess::Policy, None) => {
                let message = "the network `policy` needs a policy";
                Err(Error::new(ErrorKind::InvalidInput, message)
                    .with_condition(Condition::PolicyUnnamed))
            }
            (network, Some(_)) => {
                let network = network.as_str();
                let message = format!("a policy is for the network `policy`, not for `{network}`");
                Err(Error::new(ErrorKind::InvalidInput, message))
            }
            (_, None) => Ok(None),
        }
    }

    fn check_egress(&self, spec: &MachineSpec) -> Result<()> {
        match self.backend.egress_networks() {
            Some(networks) => networks.check(spec),
            None => {
                let name = self.backend.name();
                let message = format!("the backend `{name}` has no networks with a policy");
                Err(Error::new(ErrorKind::Unsupported, message)
                    .with_hint("the backends `local` and `docker` have them"))
            }
        }
    }

    /// Reads what is not on record of the network of a session that is about to be started.
    pub(super) async fn refresh_egress(&self, record: &mut Record) -> Result<()> {
        if record.spec.network != NetworkAccess::Policy {
            return Ok(());
        }
        self.check_egress(&record.spec)?;
        let egress = record.spec.egress.as_mut().ok_or_else(|| no_policy(&record.id))?;
        egress.refresh(self.backend.home(), &self.environment).await?;
        record.set_egress_variables();
        Ok(())
    }

    /// The policy of a session as it is on record, with the rules of its home before its own.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Conflict`] if its network has none.
    pub async fn egress_policy(&self, id: &SessionId) -> Result<Policy> {
        let egress = self.record(id)?.spec.egress.ok_or_else(|| no_policy(id))?;
        egress.in_force(self.backend.home(), &self.environment).await
    }

    /// How things stand with the network of a running session.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Conflict`] if it has no policy, [`ErrorKind::BackendLost`] if the network was closed because no proxy
    /// stayed alive.
    pub async fn egress_status(&self, id: &SessionId) -> Result<EgressStatus> {
        match self.ask_egress(id, &EgressRequest::Show).await? {
            EgressResponse::Status(status) => Ok(*status),
            other => Err(unexpected(id, &other)),
        }
    }

    /// What waits for an answer in a running session.
    ///
    /// # Errors
    ///
    /// As [`egress_status`](Self::egress_status).
    pub async fn egress_pending(&self, id: &SessionId) -> Result<Vec<PendingFlow>> {
        match self.ask_egress(id, &EgressRequest::Pending).await? {
            EgressResponse::Pending(pending) => Ok(pending),
            other => Err(unexpected(id, &other)),
        }
    }

    /// Answers something that waits. What is allowed from now on is so as long as the policy is the session's, also after
    /// it was stopped and resumed.
    ///
    /// # Errors
    ///
    /// As [`egress_status`](Self::egress_status), and if nothing of this number waits.
    pub async fn egress_answer(&self, id: &SessionId, number: u64, answer: Answer) -> Result<()> {
        let request = EgressRequest::Answer { id: number, answer };
        if answer != Answer::Session {
            return self.ask_done(id, &request).await;
        }
        let turn = self.egress_turn(id).await?;
        let mut record = self.record(id)?;
        let waiting = self.egress_pending(id).await?.into_iter().find(|flow| flow.id == number);
        let waiting = waiting.ok_or_else(|| {
            let message = format!("nothing waits under number {number} in session {id}");
            Error::new(ErrorKind::NotFound, message)
                .with_condition(Condition::ApprovalMissing(id.to_string()))
        })?;
        let egress = record.spec.egress.as_mut().ok_or_else(|| no_policy(id))?;
        self.ask_done(id, &request).await?;
        egress.approvals.push(Approval::from(waiting));
        self.state.write(&record, &turn)
    }

    /// Gives a session another policy. Where it runs, the policy holds when this returns, and what it no longer allows has
    /// ended; variables inside stay as they are. Where it is stopped, the policy holds when it is resumed. What was
    /// approved before is forgotten.
    ///
    /// # Errors
    ///
    /// As [`egress_status`](Self::egress_status), and if the policy means nothing here; nothing is changed then.
    /// [`ErrorKind::Conflict`] if programs inside would have to trust the session's authority, and it was started without
    /// that.
    pub async fn set_egress_policy(&self, id: &SessionId, policy: &Policy) -> Result<()> {
        let turn = self.egress_turn(id).await?;
        let mut record = self.record(id)?;
        let before = record.spec.egress.take().ok_or_else(|| no_policy(id))?;
        let mut egress = Egress::new(policy, self.backend.home(), &self.environment).await?;
        egress.inherit_placeholders(&before);
        let own = egress.own.to_value();
        // What cannot be put on record is not begun; what came of it is told apart.
        self.audit(id, "changing_network_policy", || json!({"policy": own})).await?;
        let set = match record.stage {
            Stage::Stopped => Ok(()),
            _ => self.set_running(id, &egress).await,
        };
        if let Err(error) = set {
            let data = || json!({"error": error.message(), "code": error.code()});
            // It failed already.
            drop(self.audit(id, "network_policy_unchanged", data).await);
            return Err(error);
        }
        record.spec.egress = Some(egress);
        self.state.write(&record, &turn)?;
        self.audit(id, "network_policy", || json!({"policy": own})).await?;
        if record.stage == Stage::Stopped {
            return Ok(());
        }
        // The warden heard of the change before it hears of this: what the policy newly wants is listened to by then.
        self.egress_status(id).await.map(drop)
    }

    /// Has the proxy of a running session go by another policy.
    async fn set_running(&self, id: &SessionId, egress: &Egress) -> Result<()> {
        if egress.reads() && !egress.trusts_authority {
            let message = format!(
                "the policy has TLS read, and programs in session {id} trust nobody who does: it was started with a policy that reads none"
            );
            return Err(Error::new(ErrorKind::Conflict, message)
                .with_hint("stop the session, set its policy, and resume it"));
        }
        let request = EgressRequest::Set {
            policy: egress.policy.to_value().to_string(),
            secrets: egress.secrets.clone(),
        };
        self.ask_done(id, &request).await
    }

    /// The right to change what is on record about a session.
    async fn egress_turn(&self, id: &SessionId) -> Result<Transition> {
        match self.state.lock_transition(id).await? {
            TransitionAttempt::Ours(turn) => Ok(turn),
            TransitionAttempt::Missing => {
                let message = format!("there is no session {id}");
                Err(Error::new(ErrorKind::NotFound, message))
            }
            TransitionAttempt::Taken => Err(busy(id)),
        }
    }

    async fn ask_done(&self, id: &SessionId, request: &EgressRequest) -> Result<()> {
        match self.ask_egress(id, request).await? {
            EgressResponse::Done => Ok(()),
            other => Err(unexpected(id, &other)),
        }
    }

    async fn ask_egress(&self, id: &SessionId, request: &EgressRequest) -> Result<EgressResponse> {
        let record = self.record(id)?;
        if record.spec.egress.is_none() {
            return Err(no_policy(id));
        }
        let networks = self.backend.egress_networks().ok_or_else(|| no_policy(id))?;
        let machine = record.machine.as_ref().filter(|_| record.stage == Stage::Running);
        let Some(machine) = machine else {
            return Err(Error::new(ErrorKind::Conflict, format!("session {id} does not run"))
                .with_condition(Condition::SessionNotRunning(id.to_string())));
        };
        match networks.ask(machine, request).await? {
            Some(EgressResponse::Refused { message }) => {
                Err(Error::new(ErrorKind::InvalidInput, message))
            }
            Some(response) => Ok(response),
            None => {
                let message = format!("the network of session {id} is closed: its proxy was lost");
                Err(Error::new(ErrorKind::BackendLost, message)
                    .with_hint("stop and resume the session"))
            }
        }
    }
}

fn unexpected(id: &SessionId, response: &EgressResponse) -> Error {
    let message = format!("the proxy of session {id} answered something else: {response:?}");
    Error::new(ErrorKind::Internal, message)
}
