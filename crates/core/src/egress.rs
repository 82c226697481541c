//! Networks with a policy: which one a session has, and what its proxy is asked.
//!
//! The policy of a session is on record without the values of its secrets, which are read from their sources whenever its
//! machine is started. What the home itself says ([`HOME_POLICY_FILE`]) comes before what any session says, each time anew.

mod home_policy;
mod presets;
mod shorthand;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bastide_model::policy::{Policy, SecretSpec};
use bastide_proto::egress::PLACEHOLDER_PREFIX;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::Value;

use crate::secrets::{ReferenceAuthor, SecretReference};
use crate::{Condition, Error, ErrorKind, Result};

pub use bastide_proto::egress::{
    Answer, EgressRequest, EgressResponse, EgressSecret, EgressStatus, FlowStatus, PendingFlow,
};
pub use home_policy::HOME_POLICY_FILE;
use presets::Resolved;
pub use presets::resolve_presets;
pub use shorthand::{ShorthandError, allow_rule, with_shorthand};

type ReadVariable = dyn Fn(&str) -> Option<String> + Send + Sync;

/// Looks a variable of the caller's environment up, for sources of secrets and settings of package managers.
#[derive(Clone)]
pub struct EnvironmentReader(Arc<ReadVariable>);

impl EnvironmentReader {
    /// Reads variables in that way.
    pub fn new(read: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    /// The value of a variable, if it is set.
    #[must_use]
    pub fn read(&self, name: &str) -> Option<String> {
        (self.0)(name)
    }
}

impl Default for EnvironmentReader {
    fn default() -> Self {
        Self::new(|_| None)
    }
}

impl fmt::Debug for EnvironmentReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EnvironmentReader").finish_non_exhaustive()
    }
}

/// The network of a session that has a policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Egress {
    /// The session's own policy: presets are resolved, the home's rules are not in it.
    #[serde(serialize_with = "write_policy", deserialize_with = "read_policy")]
    pub own: Policy,
    /// What stands inside for each secret that has a variable there, by the secret's name.
    #[serde(default)]
    pub placeholders: BTreeMap<String, String>,
    /// What somebody allowed who was asked, for as long as this policy is the session's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approvals: Vec<Approval>,
    /// Whether the machine was started with certificates inside that have programs trust the session's authority.
    #[serde(default)]
    pub trusts_authority: bool,
    /// What package managers inside are told, where presets stand for what this machine's are set to use.
    #[serde(default)]
    pub settings: Vec<(String, String)>,
    /// The variables that tell package managers which certificates to trust, and the files of this machine that its own are
    /// set to trust.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub certificates: Vec<(String, PathBuf)>,
    /// The configuration of cargo inside, where another registry stands for the usual one: no variable can say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cargo_config: Option<String>,
    /// The policy in force: with the home's rules before its own. Never stored.
    #[serde(skip)]
    pub policy: Policy,
    /// Every secret of the policy, with its value. Never stored.
    #[serde(skip)]
    pub secrets: Vec<EgressSecret>,
}

impl Egress {
    /// The network that a policy of the caller's makes in a home.
    ///
    /// # Errors
    ///
    /// If a preset or a secret means nothing here, or the home's own policy cannot be read.
    pub async fn new(own: &Policy, home: &Path, env: &EnvironmentReader) -> Result<Self> {
        let resolved = presets::resolve(own, env).await?;
        let Resolved { policy, variables, certificates, cargo_config } = resolved;
        let mut egress = Self {
            own: policy,
            settings: variables,
            certificates,
            cargo_config,
            placeholders: BTreeMap::new(),
            approvals: Vec::new(),
            trusts_authority: false,
            policy: Policy::default(),
            secrets: Vec::new(),
        };
        egress.refresh(home, env).await?;
        Ok(egress)
    }

    /// Reads again what is not stored: the home's rules, and the secrets from their sources.
    ///
    /// # Errors
    ///
    /// Names the first secret that is missing, and never a value.
    pub async fn refresh(&mut self, home: &Path, env: &EnvironmentReader) -> Result<()> {
        self.policy = self.in_force(home, env).await?;
        let mut secrets = Vec::with_capacity(self.policy.secrets.len());
        for (name, spec) in &self.policy.secrets {
            let value = value_of(name, spec, env).await?;
            let placeholder = spec.env.as_ref().map(|_| {
                self.placeholders.entry(name.clone()).or_insert_with(new_placeholder).clone()
            });
            secrets.push(EgressSecret { name: name.clone(), value, placeholder });
        }
        self.secrets = secrets;
        self.trusts_authority = self.reads();
        Ok(())
    }

    /// The session's policy with the rules of a home before its own, and what was approved since.
    pub(crate) async fn in_force(&self, home: &Path, env: &EnvironmentReader) -> Result<Policy> {
        let mut policy = match home_policy::read(home)? {
            Some(floor) => {
                let floor = resolve_presets(&floor, env).await?;
                self.own.check_floor(&floor).map_err(|message| {
                    Error::new(ErrorKind::Conflict, message)
                        .with_hint(format!("the policy of this home is {HOME_POLICY_FILE} in it"))
                })?;
                self.own.with_floor(&floor)
            }
            None => self.own.clone(),
        };
        for approval in &self.approvals {
            let request = approval.method.as_deref().zip(approval.path.as_deref());
            // What nobody would be asked about any more needs no approval, or has none.
            if let Ok(approved) = policy.approve(&approval.host, approval.port, request) {
                policy = approved;
            }
        }
        Ok(policy)
    }

    /// Goes on from what a session had before: what stands inside for secrets is in the environment of programs that
    /// run, also for secrets that a policy in between does not have.
    pub(crate) fn inherit_placeholders(&mut self, before: &Self) {
        for (name, known) in &before.placeholders {
            self.placeholders.insert(name.clone(), known.clone());
        }
        for secret in &mut self.secrets {
            if let (Some(placeholder), Some(known)) =
                (&mut secret.placeholder, self.placeholders.get(&secret.name))
            {
                placeholder.clone_from(known);
            }
        }
        self.trusts_authority = before.trusts_authority;
    }

    /// The variables that hold placeholders inside.
    #[must_use]
    pub fn variables(&self) -> Vec<(String, String)> {
        let with_variable = |(name, spec): (&String, &SecretSpec)| {
            Some((spec.env.clone()?, self.placeholders.get(name)?.clone()))
        };
        self.policy.secrets.iter().filter_map(with_variable).collect()
    }

    /// Whether TLS of some hosts is read, so that programs have to trust the session's authority.
    #[must_use]
    pub fn reads(&self) -> bool {
        !self.policy.read_hosts().is_empty()
    }

    /// What a receipt says of it: a wall, and what it does not hold.
    #[must_use]
    pub fn receipt_lines(&self) -> (String, [&'static str; 2]) {
        let counted = |count: usize, what: &str| match count {
            1 => format!("1 {what}"),
            count => format!("{count} {what}s"),
        };
        let rules = counted(self.policy.rules.len(), "rule");
        let read = match self.policy.read_hosts().len() {
            0 => "TLS passed through".to_owned(),
            hosts => format!("TLS read for {}", counted(hosts, "host")),
        };
        (format!("own network that leads to a proxy alone, {rules}, {read}"), NOT_ENFORCED)
    }
}

/// Something that somebody allowed who was asked about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Approval {
    /// Whom the program inside dialled.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The method, where it was a request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// The path, where it was a request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

impl From<PendingFlow> for Approval {
    fn from(flow: PendingFlow) -> Self {
        Self { host: flow.host, port: flow.port, method: flow.method, path: flow.path }
    }
}

/// What no policy holds.
const NOT_ENFORCED: [&str; 2] = [
    "network: what an allowed host does with what it is sent",
    "network: which of a front's names is served where TLS is passed through",
];

async fn value_of(name: &str, spec: &SecretSpec, env: &EnvironmentReader) -> Result<String> {
    let about = |error: Error| {
        let failure = Error::new(error.kind(), format!("the secret {name}: {}", error.message()));
        match error.hint() {
            Some(hint) => failure.with_hint(hint.to_owned()),
            None => failure,
        }
    };
    let reference = SecretReference::parse(&spec.from.to_string(), ReferenceAuthor::Caller);
    let value = reference.map_err(about)?.read(&|name| env.read(name)).await.map_err(about)?;
    Ok(value.to_string())
}

/// What stands for a secret inside. It means nothing outside of its session.
fn new_placeholder() -> String {
    format!("{PLACEHOLDER_PREFIX}{}", uuid::Uuid::new_v4().simple())
}

fn write_policy<S: Serializer>(policy: &Policy, serializer: S) -> Result<S::Ok, S::Error> {
    policy.to_value().serialize(serializer)
}

fn read_policy<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Policy, D::Error> {
    Policy::from_value(&Value::deserialize(deserializer)?).map_err(de::Error::custom)
}

/// The error for a session whose network has no policy.
pub(crate) fn no_policy(id: &impl fmt::Display) -> Error {
    Error::new(ErrorKind::Conflict, format!("the network of session {id} has no policy"))
        .with_condition(Condition::PolicyMissing)
}

#[cfg(test)]
mod tests {
    use bastide_model::document::Format;

    use super::*;

    fn policy(text: &str) -> Policy {
        Policy::parse("policy.yaml", text, Format::Yaml).unwrap()
    }

    fn env() -> EnvironmentReader {
        EnvironmentReader::new(|name| (name == "TOKEN").then(|| "hidden".to_owned()))
    }

    const WITH_SECRET: &str = "rules:\n- allow: api.example.org\nsecrets:\n  KEY: {from: 'env:TOKEN', env: API_KEY, \
                               hosts: [api.example.org]}\n";

    #[tokio::test]
    async fn stores_no_value_of_a_secret_and_keeps_its_placeholder() {
        let home = tempfile::tempdir().unwrap();
        let made = Egress::new(&policy(WITH_SECRET), home.path(), &env()).await.unwrap();
        assert_eq!(made.secrets[0].value, "hidden");
        let stored = serde_json::to_string(&made).unwrap();
        assert!(!stored.contains("hidden") && !format!("{made:?}").contains("hidden"), "{stored}");
        let mut read: Egress = serde_json::from_str(&stored).unwrap();
        assert!(read.secrets.is_empty());
        read.refresh(home.path(), &env()).await.unwrap();
        assert_eq!(read.variables(), made.variables());
        assert_eq!(read.variables()[0].0, "API_KEY");
        assert!(read.variables()[0].1.starts_with(PLACEHOLDER_PREFIX));
    }

    #[tokio::test]
    async fn keeps_what_stands_for_a_secret_through_a_policy_without_it() {
        let home = tempfile::tempdir().unwrap();
        let made = Egress::new(&policy(WITH_SECRET), home.path(), &env()).await.unwrap();
        let without = policy("rules:\n- allow: b.example.org\n");
        let mut between = Egress::new(&without, home.path(), &env()).await.unwrap();
        between.inherit_placeholders(&made);
        let stored = serde_json::to_string(&between).unwrap();
        let mut between: Egress = serde_json::from_str(&stored).unwrap();
        between.refresh(home.path(), &env()).await.unwrap();
        let mut again = Egress::new(&policy(WITH_SECRET), home.path(), &env()).await.unwrap();
        again.inherit_placeholders(&between);
        assert_eq!(again.variables(), made.variables());
        assert_eq!(again.secrets, made.secrets);
    }

    #[tokio::test]
    async fn remembers_what_was_approved() {
        let home = tempfile::tempdir().unwrap();
        let asks = policy("rules:\n- ask: '*'\n");
        let mut made = Egress::new(&asks, home.path(), &env()).await.unwrap();
        let host = "a.example.org".to_owned();
        made.approvals.push(Approval { host, port: 443, method: None, path: None });
        let stored = serde_json::to_string(&made).unwrap();
        let mut read: Egress = serde_json::from_str(&stored).unwrap();
        assert_eq!(read.own.rules.len(), 1);
        read.refresh(home.path(), &env()).await.unwrap();
        assert_eq!(read.policy.rules.len(), 2);
        // A home that denies it has the last word, whatever was approved.
        std::fs::write(home.path().join(HOME_POLICY_FILE), "rules:\n- deny: a.example.org\n")
            .unwrap();
        read.refresh(home.path(), &env()).await.unwrap();
        assert!(!read.policy.may_allow_name("a.example.org"));
    }

    #[tokio::test]
    async fn leads_no_secret_of_the_home_elsewhere() {
        let home = tempfile::tempdir().unwrap();
        let floor = "rules:\n- allow: api.example.org\n  inject: [{header: authorization, value: '${KEY}'}]\nsecrets:\n  KEY: \
                     {from: 'env:TOKEN'}\n";
        std::fs::write(home.path().join(HOME_POLICY_FILE), floor).unwrap();
        for (own, said) in [
            ("hosts: {api.example.org: 127.0.0.1}\n", "api.example.org"),
            ("upstream: {proxy: 'http://127.0.0.1:1'}\n", "`upstream`"),
            (WITH_SECRET, "the secret KEY"),
        ] {
            let error = Egress::new(&policy(own), home.path(), &env()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Conflict);
            assert!(error.message().contains(said), "{error}");
        }
        let plain = policy("rules:\n- allow: b.example.org\n");
        assert!(Egress::new(&plain, home.path(), &env()).await.is_ok());
    }

    #[tokio::test]
    async fn names_a_secret_that_is_missing() {
        let home = tempfile::tempdir().unwrap();
        let nothing = EnvironmentReader::default();
        let error = Egress::new(&policy(WITH_SECRET), home.path(), &nothing).await.unwrap_err();
        assert!(error.message().contains("the secret KEY") && error.message().contains("TOKEN"));
    }

    #[tokio::test]
    async fn puts_the_rules_of_the_home_first_each_time() {
        let home = tempfile::tempdir().unwrap();
        let own = policy("rules:\n- allow: a.example.org\n");
        std::fs::write(home.path().join(HOME_POLICY_FILE), "rules:\n- deny: a.example.org\n")
            .unwrap();
        let mut made = Egress::new(&own, home.path(), &env()).await.unwrap();
        assert_eq!((made.own.rules.len(), made.policy.rules.len()), (1, 2));
        assert!(made.policy.rules[0].floor);
        std::fs::remove_file(home.path().join(HOME_POLICY_FILE)).unwrap();
        made.refresh(home.path(), &env()).await.unwrap();
        assert_eq!(made.policy.rules.len(), 1);
        std::fs::write(home.path().join(HOME_POLICY_FILE), "rules: 7\n").unwrap();
        assert!(made.refresh(home.path(), &env()).await.is_err());
    }
}
