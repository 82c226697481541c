//! Secrets that a policy names. Their values are never here.

use std::fmt;

use serde_json::{Map, Value};

use super::host::HostPattern;
use crate::lax::{Checked, FromInput, Input};

/// Where the value of a secret comes from, on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretSource {
    /// A variable of whoever makes the session: `env:NAME`.
    Env(String),
    /// A file, without the line's end: `file:PATH`.
    File(String),
    /// What a command prints, without the line's end: `cmd:COMMAND`.
    Command(String),
}

impl SecretSource {
    /// Reads a source.
    ///
    /// # Errors
    ///
    /// Why it is none.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || "a source is env:NAME, file:PATH or cmd:COMMAND".to_owned();
        let (kind, rest) = text.split_once(':').ok_or_else(wrong)?;
        if rest.is_empty() || rest.contains('\0') {
            return Err(wrong());
        }
        match kind {
            "env" if is_variable(rest) => Ok(Self::Env(rest.to_owned())),
            "env" => Err("no variable of an environment is called so".to_owned()),
            "file" if rest.starts_with('/') => Ok(Self::File(rest.to_owned())),
            "file" => Err("the path of a secret's file begins with a slash".to_owned()),
            "cmd" => Ok(Self::Command(rest.to_owned())),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Env(name) => write!(f, "env:{name}"),
            Self::File(path) => write!(f, "file:{path}"),
            Self::Command(command) => write!(f, "cmd:{command}"),
        }
    }
}

/// A secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretSpec {
    /// Where its value comes from.
    pub from: SecretSource,
    /// The variable inside that has its placeholder.
    pub env: Option<String>,
    /// The hosts that get the value where the placeholder is sent.
    pub hosts: Vec<HostPattern>,
}

impl SecretSpec {
    /// The secret as JSON.
    #[must_use]
    pub fn to_value(&self) -> Value {
        let mut out = Map::new();
        out.insert("from".to_owned(), self.from.to_string().into());
        if let Some(env) = &self.env {
            out.insert("env".to_owned(), env.as_str().into());
        }
        if !self.hosts.is_empty() {
            let hosts = self.hosts.iter().map(|host| Value::from(host.to_string())).collect();
            out.insert("hosts".to_owned(), hosts);
        }
        Value::Object(out)
    }
}

impl FromInput for SecretSpec {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        let mut fields = input.fields("Secret")?;
        fields.forbid_extra();
        let from = fields.required_with("from", |input| {
            let text = String::from_input(input)?;
            SecretSource::parse(&text).map_err(|message| input.value_error(message))
        });
        let env = fields.or_with("env", None, |input| {
            let name = String::from_input(input)?;
            if !is_variable(&name) {
                return Err(input.value_error("no variable of an environment is called so"));
            }
            Ok(Some(name))
        });
        let hosts = fields.or_with("hosts", Vec::new(), |input| {
            input.list(|item| match HostPattern::from_input(item)? {
                HostPattern::AnyName | HostPattern::Preset(_) => {
                    Err(item.value_error("name the hosts that may have the secret"))
                }
                pattern => Ok(pattern),
            })
        });
        let spec = fields.build(|| Some(Self { from: from?, env: env?, hosts: hosts? }))?;
        match (&spec.env, spec.hosts.is_empty()) {
            (Some(_), true) => Err(input.value_error(
                "a secret with `env` needs `hosts`: where its placeholder is replaced",
            )),
            (None, false) => Err(input.value_error(
                "a secret with `hosts` needs `env`: the variable that has its placeholder",
            )),
            _ => Ok(spec),
        }
    }
}

/// Whether a secret may be called so.
pub(super) fn is_variable(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    !name.is_empty()
        && name.len() <= 128
        && name.bytes().all(fits)
        && !name.starts_with(|first: char| first.is_ascii_digit())
}

/// The value of a header, with names of secrets in it: `Bearer ${TOKEN}`, `Basic ${TOKEN|basic:user}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template(Vec<TemplatePart>);

/// A piece of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemplatePart {
    /// Itself.
    Text(String),
    /// The value of a secret.
    Secret {
        /// Which.
        name: String,
        /// The user in whose name it is a password of Basic authentication.
        basic: Option<String>,
    },
}

impl Template {
    /// Reads a template.
    ///
    /// # Errors
    ///
    /// Why it is none.
    pub fn parse(text: &str) -> Result<Self, String> {
        if !text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            return Err("the value of a header is printable ASCII".to_owned());
        }
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(at) = rest.find("${") {
            if at > 0 {
                parts.push(TemplatePart::Text(rest[..at].to_owned()));
            }
            let end = rest[at..].find('}').ok_or("`${` has no `}`")?;
            parts.push(secret_part(&rest[at + 2..at + end])?);
            rest = &rest[at + end + 1..];
        }
        if !rest.is_empty() {
            parts.push(TemplatePart::Text(rest.to_owned()));
        }
        Ok(Self(parts))
    }

    /// Its pieces.
    #[must_use]
    pub fn parts(&self) -> &[TemplatePart] {
        &self.0
    }

    /// The secrets it names.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|part| match part {
            TemplatePart::Secret { name, .. } => Some(name.as_str()),
            TemplatePart::Text(_) => None,
        })
    }
}

fn secret_part(inner: &str) -> Result<TemplatePart, String> {
    let (name, filter) = match inner.split_once('|') {
        Some((name, filter)) => (name, Some(filter)),
        None => (inner, None),
    };
    if !is_variable(name) {
        return Err(format!("{name:?} is no name of a secret"));
    }
    let basic = match filter {
        None => None,
        Some(filter) => match filter.strip_prefix("basic:") {
            Some(user) if !user.contains(':') => Some(user.to_owned()),
            _ => {
                return Err(format!(
                    "`{filter}` is unknown; after a secret there is `|basic:USER`"
                ));
            }
        },
    };
    Ok(TemplatePart::Secret { name: name.to_owned(), basic })
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in &self.0 {
            match part {
                TemplatePart::Text(text) => f.write_str(text)?,
                TemplatePart::Secret { name, basic: None } => write!(f, "${{{name}}}")?,
                TemplatePart::Secret { name, basic: Some(user) } => {
                    write!(f, "${{{name}|basic:{user}}}")?;
                }
            }
        }
        Ok(())
    }
}

impl FromInput for Template {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        let text = String::from_input(input)?;
        Self::parse(&text).map_err(|message| input.value_error(message))
    }
}
