//! Secrets on their way out, and back.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bastide_model::policy::{Host, Policy, Template, TemplatePart};
use bastide_proto::egress::EgressSecret;
use http::{HeaderMap, HeaderValue};

/// The secrets of a session.
#[derive(Debug, Clone, Default)]
pub(crate) struct Secrets(Vec<EgressSecret>);

/// What was sent to somebody who may send it back, and what the program inside gets in its place.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct InjectedSecrets(Vec<(Vec<u8>, Vec<u8>)>);

/// A placeholder that is on its way to somebody who must not have the secret.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Exfiltration {
    pub(crate) name: String,
    pub(crate) message: &'static str,
}

impl InjectedSecrets {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn add(&mut self, value: &[u8], instead: &str) {
        if !value.is_empty() && !self.0.iter().any(|(known, _)| known == value) {
            self.0.push((value.to_vec(), instead.as_bytes().to_vec()));
            // The longest first: one may contain another.
            self.0.sort_by_key(|(known, _)| std::cmp::Reverse(known.len()));
        }
    }

    /// The same with as many other characters in the place of each.
    pub(crate) fn masked(&self) -> Self {
        Self(self.0.iter().map(|(value, _)| (value.clone(), vec![b'*'; value.len()])).collect())
    }

    /// The same header without what was sent.
    pub(crate) fn redacted(&self, value: &HeaderValue) -> Option<HeaderValue> {
        let mut out = Vec::new();
        let mut rest = value.as_bytes().to_vec();
        self.replace(&mut rest, &mut out, true);
        (out != value.as_bytes()).then(|| HeaderValue::from_bytes(&out).ok()).flatten()
    }

    /// Moves what can be told from `pending` to `out`. What may be the beginning of a secret stays, except at the end.
    pub(crate) fn replace(&self, pending: &mut Vec<u8>, out: &mut Vec<u8>, is_end: bool) {
        let mut at = 0;
        'bytes: while at < pending.len() {
            let rest = &pending[at..];
            let may_go_on = |value: &[u8]| value.len() > rest.len() && value.starts_with(rest);
            if !is_end && self.0.iter().any(|(value, _)| may_go_on(value)) {
                break;
            }
            for (value, instead) in &self.0 {
                if rest.starts_with(value) {
                    out.extend_from_slice(instead);
                    at += value.len();
                    continue 'bytes;
                }
            }
            out.push(pending[at]);
            at += 1;
        }
        pending.drain(..at);
    }
}

impl Secrets {
    pub(crate) fn new(list: Vec<EgressSecret>) -> Self {
        Self(list)
    }

    pub(crate) fn list(&self) -> &Vec<EgressSecret> {
        &self.0
    }

    /// The first secret that a policy names and nobody gave.
    pub(crate) fn missing(&self, policy: &Policy) -> Option<String> {
        policy.secrets.keys().find(|name| self.find(name).is_none()).cloned()
    }

    fn find(&self, name: &str) -> Option<&EgressSecret> {
        self.0.iter().find(|secret| secret.name == name)
    }

    /// The value of a header that is injected.
    pub(crate) fn fill(
        &self,
        template: &Template,
        sent: &mut InjectedSecrets,
    ) -> Result<HeaderValue, String> {
        let mut text = String::new();
        for part in template.parts() {
            match part {
                TemplatePart::Text(plain) => text.push_str(plain),
                TemplatePart::Secret { name, basic } => {
                    let secret =
                        self.find(name).ok_or_else(|| format!("the secret {name} is missing"))?;
                    let instead = instead_of(secret);
                    sent.add(secret.value.as_bytes(), &instead);
                    match basic {
                        None => text.push_str(&secret.value),
                        Some(user) => {
                            let both = STANDARD.encode(format!("{user}:{}", secret.value));
                            sent.add(both.as_bytes(), &instead);
                            text.push_str(&both);
                        }
                    }
                }
            }
        }
        let mut value = HeaderValue::from_str(&text)
            .map_err(|_| "a secret has characters that no header can have".to_owned())?;
        value.set_sensitive(true);
        Ok(value)
    }

    /// Puts values in place of placeholders, where the host may have them.
    pub(crate) fn put_in(
        &self,
        policy: &Policy,
        host: &Host,
        is_tls: bool,
        target: &str,
        headers: &mut HeaderMap,
        sent: &mut InjectedSecrets,
    ) -> Result<(), Exfiltration> {
        for secret in &self.0 {
            let Some(placeholder) = &secret.placeholder else { continue };
            let refuse = |message| Exfiltration { name: secret.name.clone(), message };
            if target.contains(placeholder.as_str()) {
                return Err(refuse("placeholders of secrets are replaced in headers alone"));
            }
            let spec = policy.secrets.get(&secret.name);
            let may = spec.is_some_and(|spec| spec.hosts.iter().any(|pattern| pattern.fits(host)));
            for (_, value) in headers.iter_mut() {
                let Some(filled) = filled(value, placeholder, &secret.value) else { continue };
                if !may {
                    return Err(refuse("the secret is not for this host"));
                }
                if !is_tls {
                    return Err(refuse("secrets go nowhere in the clear"));
                }
                sent.add(secret.value.as_bytes(), placeholder);
                if let FilledHeader::Basic(both) = &filled {
                    sent.add(both.as_bytes(), placeholder);
                }
                *value = filled
                    .into_value()
                    .ok_or_else(|| refuse("the secret has characters that no header can have"))?;
            }
        }
        Ok(())
    }
}

fn instead_of(secret: &EgressSecret) -> String {
    secret.placeholder.clone().unwrap_or_else(|| format!("[secret {}]", secret.name))
}

enum FilledHeader {
    Plain(Vec<u8>),
    /// Credentials of Basic authentication, encoded.
    Basic(String),
}

impl FilledHeader {
    fn into_value(self) -> Option<HeaderValue> {
        let mut value = match self {
            Self::Plain(bytes) => HeaderValue::from_bytes(&bytes).ok()?,
            Self::Basic(both) => HeaderValue::from_str(&format!("Basic {both}")).ok()?,
        };
        value.set_sensitive(true);
        Some(value)
    }
}

/// The header with the secret in it; none if the placeholder is not.
fn filled(header: &HeaderValue, placeholder: &str, secret: &str) -> Option<FilledHeader> {
    let bytes = header.as_bytes();
    let found = bytes.windows(placeholder.len()).any(|part| part == placeholder.as_bytes());
    if found {
        let mut out = Vec::new();
        let replace = InjectedSecrets(vec![(placeholder.into(), secret.into())]);
        replace.replace(&mut bytes.to_vec(), &mut out, true);
        return Some(FilledHeader::Plain(out));
    }
    let text = header.to_str().ok()?;
    let (scheme, credentials) = text.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(STANDARD.decode(credentials.trim()).ok()?).ok()?;
    let found = decoded.contains(placeholder);
    found.then(|| FilledHeader::Basic(STANDARD.encode(decoded.replace(placeholder, secret))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent() -> InjectedSecrets {
        let mut sent = InjectedSecrets::default();
        sent.add(b"s3cret", "PLACE");
        sent.add(b"s3", "OTHER");
        sent
    }

    #[test]
    fn takes_out_secrets_however_they_are_cut() {
        let whole = b"a s3cret b s3 c s3crets3cret s3cre";
        let expected = b"a PLACE b OTHER c PLACEPLACE OTHERcre".to_vec();
        for cut in 0..=whole.len() {
            for second in cut..=whole.len() {
                let (mut pending, mut out) = (Vec::new(), Vec::new());
                for part in [&whole[..cut], &whole[cut..second], &whole[second..]] {
                    pending.extend_from_slice(part);
                    sent().replace(&mut pending, &mut out, false);
                }
                sent().replace(&mut pending, &mut out, true);
                assert_eq!(out, expected, "{cut} {second}");
            }
        }
    }

    #[test]
    fn fills_placeholders_also_in_basic_credentials() {
        let header = HeaderValue::from_static("Bearer bst-secret-1");
        let plain = filled(&header, "bst-secret-1", "x").unwrap().into_value().unwrap();
        assert_eq!(plain, "Bearer x");
        let header = format!("Basic {}", STANDARD.encode("me:bst-secret-1"));
        let header = HeaderValue::from_str(&header).unwrap();
        let basic = filled(&header, "bst-secret-1", "x").unwrap().into_value().unwrap();
        assert_eq!(basic, format!("Basic {}", STANDARD.encode("me:x")));
        assert!(filled(&basic, "bst-secret-1", "x").is_none());
    }
}
