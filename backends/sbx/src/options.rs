//! How sandboxes of `sbx` shall be.

use std::fmt;
use std::path::PathBuf;

use bastide::{Error, ErrorKind, Result};

/// A value nobody prints by accident.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretValue(pub String);

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// How a new sandbox shall be, besides what every session says. What is given here is given to the one
/// sandbox and goes with it, but for [`oauth`](Self::oauth), which `sbx` knows for the whole machine only.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SbxOptions {
    /// The image, where it is not that of `sbx` itself.
    pub template: Option<String>,
    /// The hosts that can be reached, in the words of `sbx`: `example.com`, `*.example.com`, `host:port`.
    pub network_allow: Vec<String>,
    /// Secrets by service. The sandbox has a sentinel; the proxy of `sbx` puts the value into requests.
    pub secrets: Vec<(String, SecretValue)>,
    /// Services to sign in to where no secret of them is stored. What was stored by that is forgotten with
    /// the session.
    pub oauth: Vec<String>,
    /// Services to sign in to in any case. A secret that was stored before is replaced for good.
    pub oauth_refresh: Vec<String>,
    /// The file with the sign-in of the host's own `codex`, which is copied in. It is a real token.
    pub codex_login: Option<PathBuf>,
}

impl SbxOptions {
    /// The usual options.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes that image.
    #[must_use]
    pub fn template(mut self, image: impl Into<String>) -> Self {
        self.template = Some(image.into());
        self
    }

    /// Signs in to a service where no secret of it is stored.
    #[must_use]
    pub fn oauth(mut self, service: impl Into<String>) -> Self {
        self.oauth.push(service.into());
        self
    }

    /// Signs in to a service in any case.
    #[must_use]
    pub fn oauth_refresh(mut self, service: impl Into<String>) -> Self {
        self.oauth_refresh.push(service.into());
        self
    }

    /// Lets these hosts be reached.
    #[must_use]
    pub fn network_allow(mut self, hosts: impl IntoIterator<Item = String>) -> Self {
        self.network_allow.extend(hosts);
        self
    }

    /// Gives the sandbox the secret of a service.
    #[must_use]
    pub fn secret(mut self, service: impl Into<String>, value: impl Into<String>) -> Self {
        self.secrets.push((service.into(), SecretValue(value.into())));
        self
    }

    /// Copies the sign-in of the host's own `codex` in.
    #[must_use]
    pub fn codex_login(mut self, file: impl Into<PathBuf>) -> Self {
        self.codex_login = Some(file.into());
        self
    }

    /// Refuses what would be something else on the command line of `sbx`.
    pub(crate) fn check(&self) -> Result<()> {
        let wrong = |what: &str, text: &str| {
            Err(Error::new(ErrorKind::InvalidInput, format!("{text:?} is no {what}")))
        };
        for host in &self.network_allow {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || ".:*-/[]_".contains(c);
            if host.is_empty() || host.starts_with('-') || !host.chars().all(is_plain) {
                return wrong("host for `sbx policy allow`", host);
            }
        }
        let services = self.secrets.iter().map(|(service, _)| service);
        for service in services.chain(&self.oauth).chain(&self.oauth_refresh) {
            check_service(service)?;
        }
        match &self.template {
            Some(image) if image.is_empty() || image.starts_with('-') => wrong("image", image),
            _ => Ok(()),
        }
    }
}

/// Refuses what is no name of a service.
///
/// # Errors
///
/// If it is none.
pub fn check_service(service: &str) -> Result<()> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if service.is_empty() || service.starts_with('-') || !service.chars().all(is_plain) {
        let message = format!("{service:?} is no service of `sbx secret`");
        return Err(Error::new(ErrorKind::InvalidInput, message)
            .with_hint("`sbx secret set --help` names them, such as `openai` and `anthropic`"));
    }
    Ok(())
}
