//! What the presets of a policy stand for: the places that this machine's own package managers are set to use.
//!
//! Each manager is asked for its settings where it can say them, and has its built-in default where nothing is set or the
//! manager is not here. What is set is told to the managers inside by their own variables, without names and passwords.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use bastide_model::document::{Document, Format};
use bastide_model::policy::{Policy, PresetPlace};
use serde_json::Value;
use tokio::process::Command;

use super::EnvironmentReader;
use crate::Result;

/// How long a package manager may take to say its settings.
const PATIENCE: Duration = Duration::from_secs(20);

/// What `packages` is.
const PACKAGES: [&str; 6] = ["pip", "npm", "cargo", "go", "apt", "git"];

/// Where managers go that nobody told anything else.
const PIP_DEFAULT: [&str; 2] = ["https://pypi.org/simple", "https://files.pythonhosted.org/"];
const NPM_DEFAULT: [&str; 1] = ["https://registry.npmjs.org/"];
const CARGO_DEFAULT: [&str; 2] = ["https://index.crates.io/", "https://static.crates.io/"];
const GO_DEFAULT: [&str; 3] =
    ["https://proxy.golang.org", "https://sum.golang.org", "https://storage.googleapis.com"];
const GIT_DEFAULT: [&str; 4] = [
    "https://github.com/",
    "https://codeload.github.com/",
    "https://gitlab.com/",
    "https://codeberg.org/",
];

/// What a preset stands for, and what managers inside are told.
#[derive(Debug, Default, Clone)]
struct PresetContents {
    places: Vec<PresetPlace>,
    variables: Vec<(String, String)>,
}

impl PresetContents {
    fn of(urls: &[&str]) -> Self {
        let places = urls.iter().filter_map(|url| PresetPlace::of_url(url, false)).collect();
        Self { places, variables: Vec::new() }
    }

    /// Places that somebody set.
    fn set<'a>(urls: impl IntoIterator<Item = &'a str>) -> Self {
        let places = urls.into_iter().filter_map(|url| PresetPlace::of_url(url, true)).collect();
        Self { places, variables: Vec::new() }
    }

    fn with_variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), without_user(value)));
        self
    }
}

/// The same policy with the places that its presets stand for on this machine.
///
/// # Errors
///
/// If it names a preset that does not exist, or that stands for nothing here.
pub async fn resolve_presets(policy: &Policy, env: &EnvironmentReader) -> Result<Policy> {
    Ok(resolve(policy, env).await?.0)
}

/// As [`resolve_presets`], and the variables that tell the managers inside.
pub(super) async fn resolve(
    policy: &Policy,
    env: &EnvironmentReader,
) -> Result<(Policy, Vec<(String, String)>)> {
    let mut known: BTreeMap<&str, PresetContents> = BTreeMap::new();
    let asked = policy.presets();
    let is_asked = |name: &str| asked.iter().any(|asked| *asked == name || *asked == "packages");
    for name in PACKAGES.into_iter().filter(|name| is_asked(name)) {
        known.insert(name, contents(name, env).await);
    }
    let resolved = policy.with_presets(|name| {
        let places: Vec<_> = match name {
            "packages" => known.values().flat_map(|contents| contents.places.clone()).collect(),
            name => known.get(name)?.places.clone(),
        };
        (!places.is_empty()).then_some(places)
    })?;
    Ok((resolved, known.into_values().flat_map(|contents| contents.variables).collect()))
}

async fn contents(preset: &str, env: &EnvironmentReader) -> PresetContents {
    match preset {
        "pip" => pip(&output_of("pip", &["config", "list"]).await),
        "npm" => npm(&output_of("npm", &["config", "get", "registry"]).await),
        "cargo" => cargo(env),
        "go" => go(&output_of("go", &["env", "GOPROXY", "GOSUMDB"]).await),
        "apt" => apt(&output_of("apt-get", &["indextargets", "--format", "$(REPO_URI)"]).await),
        _ => git(&output_of("git", &["config", "--get-regexp", r"^url\..*\.insteadof$"]).await),
    }
}

/// What a program of this machine prints; nothing where it is missing, fails or is late.
async fn output_of(program: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    match tokio::time::timeout(PATIENCE, command.output()).await {
        Ok(Ok(output)) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).into_owned()
        }
        _ => String::new(),
    }
}

/// The lines of `pip config list`: `global.index-url='https://…'`.
fn pip(said: &str) -> PresetContents {
    let setting = |name: &'static str| {
        said.lines().filter_map(move |line| {
            let (key, value) = line.split_once('=')?;
            key.ends_with(&format!(".{name}")).then(|| value.trim_matches('\''))
        })
    };
    let more: Vec<&str> = setting("extra-index-url").flat_map(str::split_whitespace).collect();
    let Some(index) = setting("index-url").next_back().filter(|index| !index.is_empty()) else {
        let mut contents = PresetContents::of(&PIP_DEFAULT);
        contents.places.extend(PresetContents::set(more).places);
        return contents;
    };
    let mut contents = PresetContents::set([index].into_iter().chain(more.iter().copied()));
    if is_default(index, &PIP_DEFAULT) {
        contents.places.extend(PresetContents::of(&PIP_DEFAULT).places);
        return contents;
    }
    let extra: Vec<String> = more.into_iter().map(without_user).collect();
    let contents = contents.with_variable("PIP_INDEX_URL", index);
    if extra.is_empty() {
        contents
    } else {
        contents.with_variable("PIP_EXTRA_INDEX_URL", &extra.join(" "))
    }
}

fn npm(said: &str) -> PresetContents {
    match said.trim() {
        "" | "undefined" => PresetContents::of(&NPM_DEFAULT),
        registry if is_default(registry, &NPM_DEFAULT) => PresetContents::of(&NPM_DEFAULT),
        registry => PresetContents::set([registry]).with_variable("npm_config_registry", registry),
    }
}

fn go(said: &str) -> PresetContents {
    let mut lines = said.lines().map(str::trim);
    let (proxies, sums) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    if proxies.is_empty() || proxies.split([',', '|']).any(|proxy| is_default(proxy, &GO_DEFAULT)) {
        return PresetContents::of(&GO_DEFAULT);
    }
    let sums_url = format!("https://{}", sums.split_whitespace().next_back().unwrap_or_default());
    let urls = proxies.split([',', '|']).chain([sums_url.as_str()]);
    let list: Vec<String> = proxies.split(',').map(without_user).collect();
    PresetContents::set(urls)
        .with_variable("GOPROXY", &list.join(","))
        .with_variable("GOSUMDB", sums)
}

fn apt(said: &str) -> PresetContents {
    PresetContents::set(said.lines().map(str::trim))
}

/// The lines of `git config --get-regexp`: `url.https://mirror/.insteadof https://github.com/`.
fn git(said: &str) -> PresetContents {
    let instead = said.lines().filter_map(|line| {
        let key = line.split_whitespace().next()?.strip_prefix("url.")?;
        key.strip_suffix(".insteadof")
    });
    let mut contents = PresetContents::of(&GIT_DEFAULT);
    contents.places.extend(PresetContents::set(instead).places);
    contents
}

/// The settings of cargo, which has no command to say them.
fn cargo(env: &EnvironmentReader) -> PresetContents {
    let home = env.read("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| env.read("HOME").map(|home| PathBuf::from(home).join(".cargo")));
    let text = home.and_then(|home| {
        let names = ["config.toml", "config"].map(|name| home.join(name));
        names.iter().find_map(|path| std::fs::read_to_string(path).ok())
    });
    let set = text.as_deref().and_then(|text| {
        let document = Document::parse("config.toml", text, Format::Toml).ok()?;
        replaced_registry(document.value())
    });
    match set {
        Some(registry) => PresetContents::set([registry.as_str()]),
        None => PresetContents::of(&CARGO_DEFAULT),
    }
}

/// The registry that stands in for the default one.
fn replaced_registry(config: &Value) -> Option<String> {
    let sources = config.get("source")?;
    let mut name = "crates-io";
    // Sources may replace one another, but not in circles.
    for _ in 0..8 {
        let source = sources.get(name)?;
        match source.get("replace-with").and_then(Value::as_str) {
            Some(next) => name = next,
            None => return source.get("registry")?.as_str().map(str::to_owned),
        }
    }
    None
}

fn is_default(url: &str, defaults: &[&str]) -> bool {
    let bare = |url: &str| url.trim_end_matches('/').to_ascii_lowercase();
    defaults.iter().any(|default| bare(default) == bare(url))
}

/// A URL without the name and password in it: they would be inside.
fn without_user(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let end = rest.find('/').unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let host = authority.rsplit('@').next().unwrap_or(authority);
    format!("{scheme}://{host}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(contents: &PresetContents) -> Vec<String> {
        contents.places.iter().map(|place| place.host.to_string()).collect()
    }

    #[test]
    fn takes_what_is_set_and_else_the_default() {
        assert_eq!(hosts(&pip("")), ["pypi.org", "files.pythonhosted.org"]);
        let set = pip("global.index-url='https://me:key@index.example.org/simple'\n");
        assert_eq!(hosts(&set), ["index.example.org"]);
        let variable = ("PIP_INDEX_URL".to_owned(), "https://index.example.org/simple".to_owned());
        assert_eq!(set.variables, [variable]);
        assert_eq!(hosts(&npm("https://npm.example.org/\n")), ["npm.example.org"]);
        assert_eq!(hosts(&npm("undefined\n")), ["registry.npmjs.org"]);
        let go_set = go("https://go.example.org,direct\nsum.example.org\n");
        assert_eq!(hosts(&go_set), ["go.example.org", "sum.example.org"]);
        assert_eq!(hosts(&apt("http://deb.example.org/debian/\n")), ["deb.example.org"]);
        let mirror = git("url.https://git.example.org/.insteadof https://github.com/\n");
        assert!(hosts(&mirror).contains(&"git.example.org".to_owned()));
    }

    #[test]
    fn follows_sources_of_cargo_that_replace_one_another() {
        let text = "[source.crates-io]\nreplace-with = 'a'\n[source.a]\nreplace-with = 'b'\n[source.b]\nregistry = \
                    'sparse+https://crates.example.org/index/'\n";
        let document = Document::parse("config.toml", text, Format::Toml).unwrap();
        let found = replaced_registry(document.value()).unwrap();
        assert_eq!(hosts(&PresetContents::set([found.as_str()])), ["crates.example.org"]);
        let circle = "[source.crates-io]\nreplace-with = 'crates-io'\n";
        let document = Document::parse("config.toml", circle, Format::Toml).unwrap();
        assert_eq!(replaced_registry(document.value()), None);
    }
}
