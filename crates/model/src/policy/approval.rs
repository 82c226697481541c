//! What somebody allowed who was asked.

use super::decide::{Flow, HttpRequest};
use super::host::{Host, HostPattern};
use super::path::{NormalPath, PathGlob};
use super::rule::{Action, HttpMatch, PortRange, Rule};
use super::{MAX_RULES, Policy};

impl Policy {
    /// The policy with a rule that allows what somebody was asked about, just before the rule that asks: as much as was
    /// asked for, and no more. `request` is the method and the path, where it was a request.
    ///
    /// # Errors
    ///
    /// If no rule asks about it, or no rule can be as narrow.
    pub fn approve(
        &self,
        host: &str,
        port: u16,
        request: Option<(&str, &str)>,
    ) -> Result<Self, String> {
        let name = Host::parse(host)?;
        let (http, path) = match request {
            Some((_, path)) if path.contains('*') => {
                return Err("its path cannot be that of a rule; approve it once".to_owned());
            }
            Some((method, path)) => {
                let only = HttpMatch {
                    methods: vec![method.to_owned()],
                    paths: vec![PathGlob::parse(path)?],
                    ..HttpMatch::default()
                };
                let path = NormalPath::parse(path).map_err(|why| why.as_str().to_owned())?;
                (vec![only], Some((method, path)))
            }
            None => (Vec::new(), None),
        };
        let request = path.as_ref().map(|(method, path)| HttpRequest {
            method,
            path,
            query: None,
            headers: &[],
        });
        let found = self.explain(&Flow { host: &name, port, http: request });
        let asks = |rule: &Rule| rule.action == Action::Ask;
        // Where the query or the headers decided, it is one of those about the same place.
        let decided = found.rule.filter(|at| self.rules.get(*at).is_some_and(asks));
        let at = decided.or_else(|| {
            self.rules.iter().position(|rule| {
                let about = rule.hosts.iter().any(|pattern| pattern.fits(&name));
                asks(rule) && about && rule.fits_port(port)
            })
        });
        let at = at.ok_or("no rule asks about it any more")?;
        if self.rules.len() >= MAX_RULES {
            return Err(format!("a policy has at most {MAX_RULES} rules; approve it once"));
        }
        let asking = &self.rules[at];
        let rule = Rule {
            http,
            ports: vec![PortRange::one(port)],
            protocol: Some(found.protocol),
            private: asking.private,
            sni_optional: asking.sni_optional,
            ..Rule::new(Action::Allow, vec![HostPattern::parse(host)?])
        };
        let mut policy = self.clone();
        policy.rules.insert(at, rule);
        Ok(policy)
    }
}

#[cfg(test)]
mod tests {
    use super::super::decide::Verdict;
    use super::*;
    use crate::document::Format;

    fn policy(text: &str) -> Policy {
        Policy::parse("policy.yaml", text, Format::Yaml).unwrap()
    }

    fn verdict(policy: &Policy, method: &str, path: &str) -> Verdict {
        let (host, path) = (Host::parse("a.org").unwrap(), NormalPath::parse(path).unwrap());
        let http = HttpRequest { method, path: &path, query: None, headers: &[] };
        policy.explain(&Flow { host: &host, port: 443, http: Some(http) }).verdict
    }

    #[test]
    fn allows_as_much_as_was_asked_for() {
        let asks = policy("rules:\n- deny: b.org\n- ask: '*'\n  http: [{}]\n");
        let approved = asks.approve("a.org", 443, Some(("GET", "/q"))).unwrap();
        assert_eq!(verdict(&approved, "GET", "/q"), Verdict::Allow);
        assert_eq!(verdict(&approved, "POST", "/q"), Verdict::Ask);
        assert_eq!(verdict(&approved, "GET", "/q/r"), Verdict::Ask);
        assert!(asks.approve("b.org", 443, None).is_ok_and(|both| {
            let host = Host::parse("b.org").unwrap();
            both.explain(&Flow { host: &host, port: 443, http: None }).verdict == Verdict::Deny
        }));
        assert!(asks.approve("a.org", 443, Some(("GET", "/a*"))).is_err());
        assert!(policy("rules:\n- allow: a.org\n").approve("a.org", 443, None).is_err());
    }

    /// What a floor asks about was approved by somebody who may answer for it.
    #[test]
    fn comes_before_the_floors_question() {
        let floor = policy("rules:\n- ask: a.org\n  http: [{methods: [POST]}]\n");
        let own = policy("rules:\n- allow: a.org\n").with_floor(&floor);
        assert_eq!(verdict(&own, "POST", "/x"), Verdict::Ask);
        let own = own.approve("a.org", 443, Some(("POST", "/x"))).unwrap();
        assert_eq!(verdict(&own, "POST", "/x"), Verdict::Allow);
        assert_eq!(verdict(&own, "POST", "/y"), Verdict::Ask);
    }
}
