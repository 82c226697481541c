//! The command of a run.

use std::path::Path;

use bastide::{Error, ErrorKind, Result};

use super::{AgentSpec, CommandPart};
use crate::types::RunConfig;

impl AgentSpec {
    /// The command that has the agent do what the prompt says.
    ///
    /// # Errors
    ///
    /// If the run asks for something this agent cannot do.
    pub fn command(&self, prompt: &str, config: &RunConfig) -> Result<Vec<String>> {
        let call = &self.command;
        let mut argv = vec![call.program.clone()];
        argv.extend(call.args.iter().cloned());
        if config.is_confined {
            argv.extend(call.confined.iter().cloned());
        }
        for part in &call.order {
            argv.extend(self.optional(part, config)?);
        }
        argv.extend(config.extra_args.iter().cloned());
        argv.extend(filled(&call.prompt, "{prompt}", prompt));
        Ok(argv)
    }

    /// One part of the command, as far as the run asks for it.
    fn optional(&self, part: &CommandPart, config: &RunConfig) -> Result<Vec<String>> {
        let call = &self.command;
        let is_resumed = config.resume_session_id.is_some();
        match part {
            CommandPart::Resume => match &config.resume_session_id {
                Some(session) => self.part("resume", &call.resume, "{session}", session),
                None => Ok(Vec::new()),
            },
            CommandPart::ResumeLast
                if config.continue_last && !(is_resumed && call.resume_excludes_last) =>
            {
                self.part("resume_last", &call.resume_last, "", "")
            }
            CommandPart::Fork if config.fork_session => self.part("fork", &call.fork, "", ""),
            CommandPart::Json if config.json_events => self.part("json", &call.json, "", ""),
            CommandPart::Schema => match &config.output_schema {
                Some(schema) => self.part("schema", &call.schema, "{file}", text(schema)?),
                None => Ok(Vec::new()),
            },
            CommandPart::Attach => {
                let mut args = Vec::new();
                for file in &config.attachments {
                    args.extend(self.part("attach", &call.attach, "{file}", text(file)?)?);
                }
                Ok(args)
            }
            CommandPart::ResumeLast | CommandPart::Fork | CommandPart::Json => Ok(Vec::new()),
        }
    }

    fn part(&self, what: &str, args: &[String], slot: &str, value: &str) -> Result<Vec<String>> {
        if args.is_empty() {
            let message = format!("the agent {} has no way to `{what}`", self.name);
            return Err(Error::new(ErrorKind::Unsupported, message)
                .with_hint(format!("its file says none under `command.{what}`")));
        }
        Ok(filled(args, slot, value))
    }

    /// Which of the variables that hold the agent's keys are missing, as `has` tells: each an error of
    /// its own before anything starts.
    #[must_use]
    pub fn missing_credentials(&self, has: impl Fn(&str) -> bool) -> Vec<&str> {
        let is_covered = |group: &str| {
            self.credentials
                .iter()
                .any(|other| other.one_of.as_deref() == Some(group) && has(&other.env))
        };
        let is_missing = |credential: &&super::Credential| {
            credential.required
                && !has(&credential.env)
                && !credential.one_of.as_deref().is_some_and(is_covered)
        };
        self.credentials.iter().filter(is_missing).map(|credential| &*credential.env).collect()
    }
}

fn filled(args: &[String], slot: &str, value: &str) -> Vec<String> {
    let fill = |arg: &String| match slot.is_empty() {
        true => arg.clone(),
        false => arg.replace(slot, value),
    };
    args.iter().map(fill).collect()
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().ok_or_else(|| {
        let message = format!("{} is not UTF-8, and cannot be an argument", path.display());
        Error::new(ErrorKind::InvalidInput, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(agent: &str, config: &RunConfig) -> Vec<String> {
        AgentSpec::named(agent).unwrap().command("fix", config).unwrap()
    }

    #[test]
    fn calls_agents_as_the_reference_does() {
        let plain = RunConfig::default();
        assert_eq!(command("shell", &plain), ["sh", "-lc", "fix"]);
        assert_eq!(command("codex", &plain), ["codex", "exec", "fix"]);
        assert_eq!(command("opencode", &plain), ["opencode", "run", "fix"]);
        let confined = RunConfig { is_confined: true, ..RunConfig::default() };
        let want = "codex exec --dangerously-bypass-approvals-and-sandbox fix";
        assert_eq!(command("codex", &confined).join(" "), want);
        let config = RunConfig {
            json_events: true,
            output_schema: Some("schema.json".into()),
            attachments: vec!["a.png".into(), "b.png".into()],
            extra_args: vec!["--model".to_owned(), "m".to_owned()],
            ..RunConfig::default()
        };
        let want = "codex exec --json --output-schema schema.json --image a.png --image b.png --model m fix";
        assert_eq!(command("codex", &config).join(" "), want);
        let mut config = RunConfig {
            json_events: true,
            resume_session_id: Some("S".to_owned()),
            continue_last: true,
            ..RunConfig::default()
        };
        assert_eq!(command("codex", &config).join(" "), "codex exec resume S --json fix");
        let want = "opencode run --format json --continue --session S fix";
        assert_eq!(command("opencode", &config).join(" "), want);
        config.output_schema = Some("s".into());
        let error = AgentSpec::named("opencode").unwrap().command("x", &config).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn a_prompt_is_one_argument_whatever_it_says() {
        let config = RunConfig::default();
        for name in AgentSpec::names() {
            let spec = AgentSpec::named(name).unwrap();
            assert_eq!(spec.name, name);
            let prompt = "a 'b' $(c)\n{file} --help";
            let argv = spec.command(prompt, &config).unwrap();
            assert!(argv.iter().any(|arg| arg == prompt), "{name}: {argv:?}");
        }
    }

    #[test]
    fn names_the_keys_that_are_missing() {
        let gemini = AgentSpec::named("gemini").unwrap();
        assert_eq!(gemini.missing_credentials(|_| false).len(), 2);
        assert!(gemini.missing_credentials(|name| name == "GOOGLE_API_KEY").is_empty());
        assert!(AgentSpec::named("shell").unwrap().missing_credentials(|_| false).is_empty());
        let codex = AgentSpec::named("codex").unwrap();
        assert_eq!(codex.missing_credentials(|_| false), ["OPENAI_API_KEY"]);
    }

    #[test]
    fn refuses_what_a_file_should_not_say_with_line_and_field() {
        let text =
            "name = \"x\"\ncolour = 1\n[command]\nargs = [\"a\"]\n[[stream.steps]]\nshow = \"x\"\n";
        let error = AgentSpec::parse("x.toml", text).unwrap_err().to_string();
        for want in [
            "x.toml:2:1: unknown key `colour`",
            "command: `program` is missing",
            "steps",
            "`when` is missing",
        ] {
            assert!(error.contains(want), "{want}: {error}");
        }
    }
}
