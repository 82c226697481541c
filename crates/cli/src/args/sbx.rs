//! What can be asked of sandboxes of Docker's `sbx`.

use std::path::PathBuf;

use bastide::{Error, ErrorKind, Result};
use bastide_sbx::SbxOptions;

use super::values::parse_pair;
use crate::config;

/// What a new sandbox of `sbx` shall be like
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Docker sbx")]
pub(crate) struct SbxArgs {
    /// Host that can be reached, by a rule of this sandbox alone (can be repeated)
    #[arg(long = "sbx-allow", value_name = "HOST")]
    allowed: Vec<String>,

    /// Secret of this sandbox alone, from a variable of yours (can be repeated)
    #[arg(long = "sbx-secret", value_name = "SERVICE=VARIABLE", value_parser = parse_pair)]
    secrets: Vec<(String, String)>,

    /// Service to sign in to if no secret of it is stored; forgotten with the session (can be repeated)
    #[arg(long = "sbx-oauth", value_name = "SERVICE")]
    oauth: Vec<String>,

    /// Service to sign in to in any case, for the whole machine (can be repeated)
    #[arg(long = "sbx-oauth-refresh", value_name = "SERVICE")]
    oauth_refresh: Vec<String>,

    /// Copy the sign-in of your own codex in, where whatever runs inside can read it
    #[arg(long)]
    sbx_codex_login: bool,

    /// Image the sandbox starts from, instead of that of `sbx`
    #[arg(long, value_name = "IMAGE")]
    sbx_template: Option<String>,
}

impl SbxArgs {
    /// The options of the sandbox.
    pub(crate) fn options(self) -> Result<SbxOptions> {
        let mut options = SbxOptions::new().network_allow(self.allowed);
        for (service, variable) in self.secrets {
            let value = config::variable(&variable).ok_or_else(|| {
                let message = format!("--sbx-secret: {variable} is not set, or is no text");
                Error::new(ErrorKind::InvalidInput, message).with_context("option", "--sbx-secret")
            })?;
            options = options.secret(service, value);
        }
        options.oauth = self.oauth;
        options.oauth_refresh = self.oauth_refresh;
        options.template = self.sbx_template;
        if self.sbx_codex_login {
            options.codex_login = Some(codex_login()?);
        }
        Ok(options)
    }

    /// The variables that stand for secrets inside: sentinels, which `sbx` replaces on the way out.
    pub(crate) fn provided(&self) -> Vec<String> {
        let secrets = self.secrets.iter().map(|(service, _)| service);
        let all = secrets.chain(&self.oauth).chain(&self.oauth_refresh);
        let mut names: Vec<String> = all.flat_map(|service| variables_of(service)).collect();
        if self.sbx_codex_login {
            names.extend(variables_of("openai"));
        }
        names
    }

    /// The first option that was given, where none can be had.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let all = [
            ("--sbx-allow", !self.allowed.is_empty()),
            ("--sbx-secret", !self.secrets.is_empty()),
            ("--sbx-oauth", !self.oauth.is_empty()),
            ("--sbx-oauth-refresh", !self.oauth_refresh.is_empty()),
            ("--sbx-codex-login", self.sbx_codex_login),
            ("--sbx-template", self.sbx_template.is_some()),
        ];
        all.into_iter().find(|(_, given)| *given).map(|(option, _)| option)
    }
}

/// Where the sign-in of the caller's own codex is.
pub(crate) fn codex_login() -> Result<PathBuf> {
    let home = config::variable("HOME").ok_or_else(|| {
        Error::new(ErrorKind::InvalidInput, "--sbx-codex-login: HOME is not set")
            .with_context("option", "--sbx-codex-login")
    })?;
    Ok(PathBuf::from(home).join(".codex/auth.json"))
}

/// The variables a service's clients read their key from.
fn variables_of(service: &str) -> Vec<String> {
    let names: &[&str] = match service {
        "droid" => &["FACTORY_API_KEY"],
        "github" => &["GH_TOKEN", "GITHUB_TOKEN"],
        "google" => &["GEMINI_API_KEY", "GOOGLE_API_KEY"],
        other => return vec![format!("{}_API_KEY", other.to_ascii_uppercase())],
    };
    names.iter().map(|name| (*name).to_owned()).collect()
}
