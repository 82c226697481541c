//! What package managers say of their settings, and what of that is passed to managers inside.

use std::path::PathBuf;

use bastide_model::document::{Document, Format};
use bastide_model::policy::PresetHost;
use serde_json::Value;

use crate::egress::EnvironmentReader;

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
pub(super) struct PresetContents {
    pub(super) places: Vec<PresetHost>,
    pub(super) variables: Vec<(String, String)>,
    pub(super) certificates: Vec<(String, PathBuf)>,
    pub(super) cargo_config: Option<String>,
}

impl PresetContents {
    fn of(urls: &[&str]) -> Self {
        let places = urls.iter().filter_map(|url| PresetHost::of_url(url)).collect();
        Self { places, ..Self::default() }
    }

    /// Places that somebody set.
    fn set<'a>(urls: impl IntoIterator<Item = &'a str>) -> Self {
        let places =
            urls.into_iter().filter_map(PresetHost::of_url).map(PresetHost::configured).collect();
        Self { places, ..Self::default() }
    }

    /// Places that somebody set, of which some may be those that the manager has by itself.
    fn set_beside<'a>(defaults: &[&str], urls: impl IntoIterator<Item = &'a str>) -> Self {
        let mut contents = Self::default();
        for url in urls {
            let is_usual = defaults.iter().any(|usual| is_same(usual, url));
            let more = if is_usual { Self::of(defaults) } else { Self::set([url]) };
            contents.places.extend(more.places);
        }
        contents
    }

    /// A file of certificates that the manager is set to trust, if it is set to any.
    fn with_certificates(
        mut self,
        variable: &str,
        file: Option<&str>,
        env: &EnvironmentReader,
    ) -> Self {
        let file = file.and_then(|file| match file.strip_prefix("~/") {
            Some(rest) => Some(PathBuf::from(env.read("HOME")?).join(rest)),
            None => Some(PathBuf::from(file)),
        });
        // Any other means another file to whoever stands elsewhere.
        let file = file.filter(|file| file.is_absolute());
        self.certificates.extend(file.map(|file| (variable.to_owned(), file)));
        self
    }

    fn with_variable(mut self, name: &str, value: impl Into<String>) -> Self {
        self.variables.push((name.to_owned(), value.into()));
        self
    }
}

/// The lines of `pip config list`: `global.index-url='https://…'`.
pub(super) fn pip(output: &str, env: &EnvironmentReader) -> PresetContents {
    let setting = |name: &str| {
        // What counts more comes first.
        [":env:", "install", "global"].iter().find_map(|place| {
            let key = format!("{place}.{name}");
            let mut lines = output.lines().filter_map(|line| line.split_once('='));
            let (_, shown) = lines.find(|(known, _)| *known == key)?;
            Some(without_quotes(shown)).filter(|value| !value.trim().is_empty())
        })
    };
    let words = |name: &str| -> Vec<String> {
        let value = setting(name).unwrap_or_default();
        value.split_whitespace().map(str::to_owned).collect()
    };
    let index = setting("index-url");
    let (more, links, insecure) =
        (words("extra-index-url"), words("find-links"), words("trusted-host"));
    let all = index.as_deref().unwrap_or(PIP_DEFAULT[0]);
    let all = [all].into_iter().chain(more.iter().chain(&links).map(String::as_str));
    let mut contents = PresetContents::set_beside(&PIP_DEFAULT, all);
    if let Some(index) = index.filter(|index| !is_same(index, PIP_DEFAULT[0])) {
        contents = contents.with_variable("PIP_INDEX_URL", without_user(&index));
    }
    let is_elsewhere = |link: &&String| link.contains("://");
    let told = [
        ("PIP_EXTRA_INDEX_URL", more.iter().map(|url| without_user(url)).collect::<Vec<_>>()),
        (
            "PIP_FIND_LINKS",
            links.iter().filter(is_elsewhere).map(|url| without_user(url)).collect(),
        ),
        ("PIP_TRUSTED_HOST", insecure),
    ];
    for (variable, words) in told.into_iter().filter(|(_, words)| !words.is_empty()) {
        contents = contents.with_variable(variable, words.join(" "));
    }
    contents.with_certificates("PIP_CERT", setting("cert").as_deref(), env)
}

/// A string that Python shows as it would be written in a program.
fn without_quotes(shown: &str) -> String {
    let quoted =
        ['\'', '"'].into_iter().find_map(|quote| shown.strip_prefix(quote)?.strip_suffix(quote));
    let Some(quoted) = quoted else { return shown.to_owned() };
    let (mut value, mut rest) = (String::new(), quoted.chars());
    while let Some(character) = rest.next() {
        value.push(match (character, rest.as_str().chars().next()) {
            ('\\', Some(escaped)) => {
                rest.next();
                match escaped {
                    'n' => '\n',
                    'r' => '\r',
                    't' => '\t',
                    other => other,
                }
            }
            (plain, _) => plain,
        });
    }
    value
}

/// The lines of `npm config get registry cafile`: `registry=https://…`. Early versions say the first alone.
pub(super) fn npm(output: &str, env: &EnvironmentReader) -> PresetContents {
    let setting = |name: &str| {
        let mut lines = output.lines().filter_map(|line| line.trim().split_once('='));
        let (_, value) = lines.find(|(key, _)| *key == name)?;
        Some(value).filter(|value| !matches!(*value, "" | "undefined" | "null"))
    };
    let alone = || Some(output.trim()).filter(|said| said.starts_with("http"));
    let contents = match setting("registry").or_else(alone) {
        Some(registry) if !is_same(registry, NPM_DEFAULT[0]) => PresetContents::set([registry])
            .with_variable("npm_config_registry", without_user(registry)),
        _ => PresetContents::of(&NPM_DEFAULT),
    };
    contents.with_certificates("npm_config_cafile", setting("cafile"), env)
}

/// The two lines of `go env GOPROXY GOSUMDB`.
pub(super) fn go(output: &str) -> PresetContents {
    let mut lines = output.lines().map(str::trim);
    let (proxies, sums) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let separators = [',', '|'];
    if proxies.is_empty() || proxies.split(separators).all(is_usual_of_go) {
        return PresetContents::of(&GO_DEFAULT);
    }
    // The name of the key, and where it is asked if that is elsewhere.
    let sums: Vec<String> = sums.split_whitespace().map(without_user).collect();
    let asked = match sums.last() {
        Some(url) if url.contains("://") => Some(url.clone()),
        Some(name) if name != "off" => {
            Some(format!("https://{}", name.split('+').next().unwrap_or(name)))
        }
        _ => None,
    };
    let all = proxies.split(separators).chain(asked.as_deref());
    let told: String = proxies.split_inclusive(separators).map(without_user).collect();
    PresetContents::set_beside(&GO_DEFAULT, all)
        .with_variable("GOPROXY", told)
        .with_variable("GOSUMDB", sums.join(" "))
}

fn is_usual_of_go(proxy: &str) -> bool {
    proxy == "direct" || is_same(proxy, GO_DEFAULT[0])
}

/// The lines of `apt-get indextargets`.
pub(super) fn apt(output: &str) -> PresetContents {
    PresetContents::set(output.lines().map(str::trim))
}

/// The lines of `git config --get-regexp`: `url.https://mirror/.insteadof https://github.com/`.
pub(super) fn git(output: &str, env: &EnvironmentReader) -> PresetContents {
    let instead = output.lines().filter_map(|line| {
        let (key, value) = line.split_once(' ')?;
        Some((key.strip_prefix("url.")?.strip_suffix(".insteadof")?, value))
    });
    let instead: Vec<(&str, &str)> = instead
        .filter(|(url, _)| url.starts_with("https://") || url.starts_with("http://"))
        .collect();
    let mut contents = PresetContents::of(&GIT_DEFAULT);
    let usual = contents.places.clone();
    let set = PresetContents::set(instead.iter().map(|(url, _)| *url)).places;
    let is_new = |place: &PresetHost| {
        place.port.is_some() || usual.iter().all(|known| known.host != place.host)
    };
    contents.places.extend(set.into_iter().filter(is_new));
    if !instead.is_empty() {
        contents = contents.with_variable("GIT_CONFIG_COUNT", instead.len().to_string());
    }
    for (number, (url, value)) in instead.into_iter().enumerate() {
        let key = format!("url.{}.insteadOf", without_user(url));
        contents = contents
            .with_variable(&format!("GIT_CONFIG_KEY_{number}"), key)
            .with_variable(&format!("GIT_CONFIG_VALUE_{number}"), without_user(value));
    }
    let variable = env.read("GIT_SSL_CAINFO");
    let set = output.lines().filter_map(|line| line.strip_prefix("http.sslcainfo ")).next_back();
    contents.with_certificates("GIT_SSL_CAINFO", variable.as_deref().or(set), env)
}

/// The settings of cargo, which has no command to say them.
pub(super) fn cargo(env: &EnvironmentReader) -> PresetContents {
    let home = env.read("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| env.read("HOME").map(|home| PathBuf::from(home).join(".cargo")));
    let text = home.and_then(|home| {
        let names = ["config.toml", "config"].map(|name| home.join(name));
        names.iter().find_map(|path| std::fs::read_to_string(path).ok())
    });
    let text = text.unwrap_or_default();
    let document = Document::parse("config.toml", &text, Format::Toml).ok();
    let config = document.as_ref().map(Document::value);
    let contents = match config.and_then(replaced_registry) {
        Some(registry) => PresetContents {
            cargo_config: Some(cargo_config(&without_user(&registry))),
            ..PresetContents::set([registry.as_str()])
        },
        None => PresetContents::of(&CARGO_DEFAULT),
    };
    let variable = env.read("CARGO_HTTP_CAINFO");
    let set = config.and_then(|config| config.get("http")?.get("cainfo")?.as_str());
    contents.with_certificates("CARGO_HTTP_CAINFO", variable.as_deref().or(set), env)
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

/// What has cargo use that registry instead of the default one.
fn cargo_config(registry: &str) -> String {
    let registry = Value::from(registry);
    format!(
        "[source.crates-io]\nreplace-with = \"mirror\"\n[source.mirror]\nregistry = {registry}\n"
    )
}

fn is_same(url: &str, other: &str) -> bool {
    let bare = |url: &str| url.trim_end_matches('/').to_ascii_lowercase();
    bare(url) == bare(other)
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

    fn told(contents: &PresetContents) -> Vec<(&str, &str)> {
        contents.variables.iter().map(|(name, value)| (&**name, &**value)).collect()
    }

    fn nothing() -> EnvironmentReader {
        EnvironmentReader::default()
    }

    #[test]
    fn takes_what_is_set_and_else_the_default() {
        assert_eq!(hosts(&pip("", &nothing())), ["pypi.org", "files.pythonhosted.org"]);
        let set = pip("global.index-url='https://me:key@index.example.org/simple'\n", &nothing());
        assert_eq!(hosts(&set), ["index.example.org"]);
        assert_eq!(told(&set), [("PIP_INDEX_URL", "https://index.example.org/simple")]);
        let npm_set = npm("registry=https://npm.example.org/\ncafile=null\n", &nothing());
        assert_eq!(hosts(&npm_set), ["npm.example.org"]);
        assert_eq!(hosts(&npm("", &nothing())), ["registry.npmjs.org"]);
        assert_eq!(hosts(&npm("https://npm.example.org/\n", &nothing())), ["npm.example.org"]);
        let go_set = go("https://go.example.org,direct\nsum.example.org\n");
        assert_eq!(hosts(&go_set), ["go.example.org", "sum.example.org"]);
        assert_eq!(hosts(&apt("http://deb.example.org/debian/\n")), ["deb.example.org"]);
        let settings = "url.https://git.example.org/.insteadof https://github.com/\n";
        let mirror = git(settings, &nothing());
        assert!(hosts(&mirror).contains(&"git.example.org".to_owned()));
        let key = "url.https://git.example.org/.insteadOf";
        let expected = [
            ("GIT_CONFIG_COUNT", "1"),
            ("GIT_CONFIG_KEY_0", key),
            ("GIT_CONFIG_VALUE_0", "https://github.com/"),
        ];
        assert_eq!(told(&mirror), expected);
        // Whoever goes by ssh here does not there: nothing leads to it.
        let by_ssh = git("url.git@github.com:.insteadof https://github.com/\n", &nothing());
        assert!(told(&by_ssh).is_empty());
    }

    #[test]
    fn prefers_what_pip_prefers_and_reads_lists_over_several_lines() {
        let output = ":env:.index-url='https://env.example.org/simple'\n\
            global.extra-index-url='\\nhttps://a:b@a.example.org/simple\\nhttps://c:d@b.example.org:8443/simple'\n\
            global.find-links='/wheels https://e:f@links.example.org/'\n\
            global.index-url='https://global.example.org/simple'\n\
            global.trusted-host=\"a.example.org\"\n\
            install.index-url=''\n";
        let set = pip(output, &nothing());
        let expected = ["env.example.org", "a.example.org", "b.example.org", "links.example.org"];
        assert_eq!(hosts(&set), expected);
        let expected = [
            ("PIP_INDEX_URL", "https://env.example.org/simple"),
            (
                "PIP_EXTRA_INDEX_URL",
                "https://a.example.org/simple https://b.example.org:8443/simple",
            ),
            ("PIP_FIND_LINKS", "https://links.example.org/"),
            ("PIP_TRUSTED_HOST", "a.example.org"),
        ];
        assert_eq!(told(&set), expected);
        // The usual index beside others is no place that somebody set.
        let usual = pip("global.index-url='https://PyPI.org/simple/'\n", &nothing());
        assert!(told(&usual).is_empty() && usual.places.iter().all(|place| !place.configured));
    }

    #[test]
    fn tells_go_of_every_proxy_without_its_password() {
        let set = go(
            "https://a:b@go.example.org|https://c:d@e.example.org,https://proxy.golang.org,direct\n\
                      sum.golang.org https://f:g@sum.example.org\n",
        );
        let expected = [
            "go.example.org",
            "e.example.org",
            "proxy.golang.org",
            "sum.golang.org",
            "storage.googleapis.com",
            "sum.example.org",
        ];
        assert_eq!(hosts(&set), expected);
        let proxies =
            "https://go.example.org|https://e.example.org,https://proxy.golang.org,direct";
        let sums = "sum.golang.org https://sum.example.org";
        assert_eq!(told(&set), [("GOPROXY", proxies), ("GOSUMDB", sums)]);
        assert_eq!(hosts(&go("https://go.example.org\noff\n")), ["go.example.org"]);
        let usual = go("https://proxy.golang.org,direct\nsum.golang.org\n");
        assert!(told(&usual).is_empty() && hosts(&usual)[0] == "proxy.golang.org");
    }

    #[test]
    fn tells_managers_inside_which_certificates_they_are_set_to_trust() {
        let told = |contents: PresetContents| {
            let shown =
                |(variable, file): &(String, PathBuf)| format!("{variable}={}", file.display());
            contents.certificates.iter().map(shown).collect::<Vec<_>>().join(" ")
        };
        let pip_set = "global.client-cert='/etc/me.pem'\nglobal.cert='/etc/a.pem'\n";
        assert_eq!(told(pip(pip_set, &nothing())), "PIP_CERT=/etc/a.pem");
        let with_index = format!(":env:.index-url='https://index.example.org/simple'\n{pip_set}");
        assert_eq!(told(pip(&with_index, &nothing())), "PIP_CERT=/etc/a.pem");
        let npm_set = "registry=https://registry.npmjs.org/\ncafile=/etc/b.pem\n";
        assert_eq!(told(npm(npm_set, &nothing())), "npm_config_cafile=/etc/b.pem");
        let git_set = git("http.sslcainfo /etc/c.pem\n", &nothing());
        assert_eq!(told(git_set), "GIT_SSL_CAINFO=/etc/c.pem");
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("config.toml"), "[http]\ncainfo = '/etc/d.pem'\n").unwrap();
        let folder = home.path().to_str().unwrap().to_owned();
        let env =
            EnvironmentReader::new(move |name| (name == "CARGO_HOME").then(|| folder.clone()));
        assert_eq!(told(cargo(&env)), "CARGO_HTTP_CAINFO=/etc/d.pem");
        // What is not absolute means another file to whoever stands elsewhere.
        assert_eq!(told(pip("global.cert='a.pem'\n", &nothing())), "");
        let env = EnvironmentReader::new(|name| (name == "HOME").then(|| "/home/me".to_owned()));
        assert_eq!(told(pip("global.cert='~/a.pem'\n", &env)), "PIP_CERT=/home/me/a.pem");
    }

    #[test]
    fn follows_sources_of_cargo_that_replace_one_another() {
        let text = "[source.crates-io]\nreplace-with = 'a'\n[source.a]\nreplace-with = 'b'\n[source.b]\nregistry = \
                    'sparse+https://me:key@crates.example.org/index/'\n";
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("config.toml"), text).unwrap();
        let folder = home.path().to_str().unwrap().to_owned();
        let env =
            EnvironmentReader::new(move |name| (name == "CARGO_HOME").then(|| folder.clone()));
        let found = cargo(&env);
        assert_eq!(hosts(&found), ["crates.example.org"]);
        let told = found.cargo_config.unwrap();
        let document = Document::parse("config.toml", &told, Format::Toml).unwrap();
        let registry = replaced_registry(document.value());
        assert_eq!(registry.as_deref(), Some("sparse+https://crates.example.org/index/"));
        let circle = "[source.crates-io]\nreplace-with = 'crates-io'\n";
        let document = Document::parse("config.toml", circle, Format::Toml).unwrap();
        assert_eq!(replaced_registry(document.value()), None);
    }
}
