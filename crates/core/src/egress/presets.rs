//! What presets of policies stand for on this machine: the places that its own package managers are set to use.
//!
//! Their settings are read, nothing is run and nobody is asked. Where nothing is set, it is what they use by themselves.

use std::path::{Path, PathBuf};

use bastide_model::document::{Document, Format};
use bastide_model::policy::{PRESETS, PresetPlace};

/// Longer files are no settings of anybody.
const MAX_FILE: u64 = 1 << 20;

/// More places of one preset are not read.
const MAX_PLACES: usize = 64;

const PIP: &[&str] = &["https://pypi.org/", "https://files.pythonhosted.org/"];
const NPM: &[&str] = &["https://registry.npmjs.org/"];
const CARGO: &[&str] =
    &["https://index.crates.io/", "https://static.crates.io/", "https://crates.io/"];
const GO: &[&str] =
    &["https://proxy.golang.org/", "https://sum.golang.org/", "https://storage.googleapis.com/"];
const APT: &[&str] = &[
    "http://deb.debian.org/",
    "http://security.debian.org/",
    "http://archive.ubuntu.com/",
    "http://security.ubuntu.com/",
    "http://ports.ubuntu.com/",
];
const GIT: &[&str] = &[
    "https://github.com/",
    "https://codeload.github.com/",
    "https://objects.githubusercontent.com/",
    "https://raw.githubusercontent.com/",
    "https://gitlab.com/",
    "https://bitbucket.org/",
    "https://codeberg.org/",
];

/// Where settings are looked for.
#[derive(Clone, Copy)]
pub struct Machine<'a> {
    /// A variable of whoever makes the session.
    pub variable: &'a dyn Fn(&str) -> Option<String>,
    /// The home of that user.
    pub home: Option<&'a Path>,
    /// The root of the file system.
    pub root: &'a Path,
}

impl std::fmt::Debug for Machine<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Machine")
            .field("home", &self.home)
            .field("root", &self.root)
            .finish_non_exhaustive()
    }
}

/// What a preset stands for here; `None` if there is no such preset.
#[must_use]
pub fn preset_places(name: &str, machine: &Machine<'_>) -> Option<Vec<PresetPlace>> {
    if name == "packages" {
        let each = PRESETS.iter().map(|(name, _)| *name).filter(|name| *name != "packages");
        return Some(each.filter_map(|name| preset_places(name, machine)).flatten().collect());
    }
    let (configured, usual) = match name {
        "pip" => (machine.pip(), PIP),
        "npm" => (machine.npm(), NPM),
        "cargo" => (machine.cargo(), CARGO),
        "go" => (machine.go(), GO),
        "apt" => (machine.apt(), APT),
        "git" => (Vec::new(), GIT),
        _ => return None,
    };
    let mut places: Vec<PresetPlace> = Vec::new();
    for url in &configured {
        if let Some(place) = PresetPlace::of_url(url, true)
            && !places.contains(&place)
        {
            places.push(place);
        }
    }
    places.truncate(MAX_PLACES);
    // A place that is theirs by default is no private one because somebody wrote it down.
    let own = |url: &&str| PresetPlace::of_url(url, false);
    for place in &mut places {
        let is_usual = usual.iter().filter_map(own).any(|usual| usual.host == place.host);
        place.configured &= !is_usual;
    }
    // Its files are elsewhere.
    let needs_all = places.is_empty() || places.iter().any(|place| !place.configured);
    if needs_all {
        for place in usual.iter().filter_map(own) {
            if !places.iter().any(|known| known.host == place.host) {
                places.push(place);
            }
        }
    }
    Some(places)
}

/// Variables with which package managers inside use the same places, as far as variables can say so and no password is
/// in them.
#[must_use]
pub fn preset_variables(name: &str, machine: &Machine<'_>) -> Vec<(String, String)> {
    let all = name == "packages";
    let mut variables = Vec::new();
    let mut put = |variable: &str, urls: Vec<String>, separator: &str| {
        let fit = |url: &String| !url.contains('@') && PresetPlace::of_url(url, true).is_some();
        if !urls.is_empty() && urls.iter().all(fit) {
            variables.push((variable.to_owned(), urls.join(separator)));
        }
    };
    if all || name == "pip" {
        let (first, more) = machine.pip_urls();
        put("PIP_INDEX_URL", first.into_iter().collect(), " ");
        put("PIP_EXTRA_INDEX_URL", more, " ");
    }
    if all || name == "npm" {
        put("npm_config_registry", machine.npm().into_iter().take(1).collect(), "");
    }
    if all || name == "go" {
        put("GOPROXY", machine.go(), ",");
    }
    variables
}

impl Machine<'_> {
    fn variable(&self, names: &[&str]) -> Option<String> {
        names.iter().find_map(|name| (self.variable)(name)).filter(|value| !value.trim().is_empty())
    }

    fn read(&self, path: &Path) -> Option<String> {
        let size = std::fs::metadata(path).ok()?;
        (size.is_file() && size.len() <= MAX_FILE).then(|| std::fs::read_to_string(path).ok())?
    }

    fn in_home(&self, path: &str) -> Option<PathBuf> {
        self.home.map(|home| home.join(path))
    }

    fn config_home(&self, path: &str) -> Option<PathBuf> {
        let set = self.variable(&["XDG_CONFIG_HOME"]).map(PathBuf::from);
        set.or_else(|| self.in_home(".config")).map(|folder| folder.join(path))
    }

    /// The index of pip, and others besides.
    fn pip_urls(&self) -> (Option<String>, Vec<String>) {
        let files = [
            self.variable(&["PIP_CONFIG_FILE"]).map(PathBuf::from),
            self.variable(&["VIRTUAL_ENV"]).map(|folder| Path::new(&folder).join("pip.conf")),
            self.config_home("pip/pip.conf"),
            self.in_home(".pip/pip.conf"),
            Some(self.root.join("etc/pip.conf")),
        ];
        let texts: Vec<String> =
            files.into_iter().flatten().filter_map(|path| self.read(&path)).collect();
        let setting = |name: &str| texts.iter().find_map(|text| ini(text, name));
        let first = self.variable(&["PIP_INDEX_URL"]).or_else(|| setting("index-url"));
        let more = self.variable(&["PIP_EXTRA_INDEX_URL"]).or_else(|| setting("extra-index-url"));
        let more = more.unwrap_or_default();
        (first, more.split_whitespace().map(str::to_owned).collect())
    }

    fn pip(&self) -> Vec<String> {
        let (first, more) = self.pip_urls();
        // With others besides, the usual one is asked too.
        let usual = (first.is_none() && !more.is_empty()).then(|| PIP[0].to_owned());
        first.into_iter().chain(usual).chain(more).collect()
    }

    fn npm(&self) -> Vec<String> {
        let mut urls: Vec<String> =
            self.variable(&["npm_config_registry", "NPM_CONFIG_REGISTRY"]).into_iter().collect();
        let files = [
            self.variable(&["npm_config_userconfig"]).map(PathBuf::from),
            self.in_home(".npmrc"),
            Some(self.root.join("etc/npmrc")),
            Some(self.root.join("usr/etc/npmrc")),
        ];
        for text in files.into_iter().flatten().filter_map(|path| self.read(&path)) {
            let settings = text.lines().filter_map(|line| line.split_once('='));
            let own = settings.filter(|(key, _)| {
                let key = key.trim();
                key == "registry" || key.starts_with('@') && key.ends_with(":registry")
            });
            urls.extend(own.map(|(_, url)| url.trim().trim_matches('"').to_owned()));
        }
        urls
    }

    fn cargo(&self) -> Vec<String> {
        let folder = self.variable(&["CARGO_HOME"]).map(PathBuf::from);
        let Some(folder) = folder.or_else(|| self.in_home(".cargo")) else { return Vec::new() };
        let text = ["config.toml", "config"].iter().find_map(|name| self.read(&folder.join(name)));
        let Some(text) = text else { return Vec::new() };
        let Ok(document) = Document::parse("config.toml", &text, Format::Toml) else {
            return Vec::new();
        };
        let value = document.value();
        let mut urls = Vec::new();
        // A source may be replaced by one that is replaced itself.
        let mut source = "crates-io";
        for _ in 0..8 {
            match value["source"][source]["replace-with"].as_str() {
                Some(next) => source = next,
                None => break,
            }
        }
        if source != "crates-io" {
            urls.extend(value["source"][source]["registry"].as_str().map(str::to_owned));
            urls.extend(value["registries"][source]["index"].as_str().map(str::to_owned));
        } else {
            urls.push(CARGO[0].to_owned());
        }
        let others = value["registries"].as_object().into_iter().flatten();
        urls.extend(
            others.filter_map(|(_, registry)| registry["index"].as_str().map(str::to_owned)),
        );
        urls
    }

    fn go(&self) -> Vec<String> {
        let file =
            self.variable(&["GOENV"]).map(PathBuf::from).or_else(|| self.config_home("go/env"));
        let text = file.and_then(|path| self.read(&path)).unwrap_or_default();
        let said = text.lines().find_map(|line| line.strip_prefix("GOPROXY=")).map(str::to_owned);
        let said = self.variable(&["GOPROXY"]).or(said).unwrap_or_default();
        let urls = said.split([',', '|']).map(str::trim);
        urls.filter(|url| url.contains("://")).map(str::to_owned).collect()
    }

    fn apt(&self) -> Vec<String> {
        let folder = self.root.join("etc/apt");
        let mut files = vec![folder.join("sources.list")];
        if let Ok(entries) = std::fs::read_dir(folder.join("sources.list.d")) {
            files.extend(entries.flatten().map(|entry| entry.path()));
        }
        files.sort();
        let mut urls = Vec::new();
        for text in files.iter().filter_map(|path| self.read(path)) {
            for line in text.lines().map(str::trim) {
                let words = match line.strip_prefix("URIs:") {
                    Some(rest) => rest,
                    None if line.starts_with("deb ") || line.starts_with("deb-src ") => line,
                    None => continue,
                };
                let own = words.split_whitespace().filter(|word| word.contains("://"));
                urls.extend(own.map(str::to_owned));
            }
        }
        urls
    }
}

/// The first setting of this name in a file of sections.
fn ini(text: &str, name: &str) -> Option<String> {
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let Some((key, value)) = line.split_once(['=', ':']) else { continue };
        if line.starts_with([' ', '\t', '#', ';']) || key.trim().replace('_', "-") != name {
            continue;
        }
        let mut whole = value.trim().to_owned();
        // A value goes on in lines that are indented.
        while let Some(more) = lines.next_if(|line| line.starts_with([' ', '\t'])) {
            whole.push(' ');
            whole.push_str(more.trim());
        }
        return Some(whole);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(name: &str, machine: &Machine<'_>) -> Vec<String> {
        let place = |place: PresetPlace| {
            let port = place.port.map(|port| format!(":{port}")).unwrap_or_default();
            let mark = if place.configured { "!" } else { "" };
            format!("{}{port}{mark}", place.host)
        };
        preset_places(name, machine).unwrap().into_iter().map(place).collect()
    }

    #[test]
    fn are_what_package_managers_use_by_themselves() {
        let empty = tempfile::tempdir().unwrap();
        let machine = Machine { variable: &|_| None, home: Some(empty.path()), root: empty.path() };
        assert_eq!(shown("pip", &machine), ["pypi.org", "files.pythonhosted.org"]);
        assert_eq!(shown("npm", &machine), ["registry.npmjs.org"]);
        assert_eq!(shown("cargo", &machine), ["index.crates.io", "static.crates.io", "crates.io"]);
        assert!(shown("go", &machine).contains(&"sum.golang.org".to_owned()));
        assert!(shown("apt", &machine).contains(&"deb.debian.org".to_owned()));
        assert!(shown("packages", &machine).len() > 15);
        assert!(preset_places("nothing", &machine).is_none());
        assert!(preset_variables("packages", &machine).is_empty());
    }

    #[test]
    fn are_what_package_managers_are_set_to_use() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write(
            ".config/pip/pip.conf",
            "[global]\nindex_url = https://u:p@pip.corp/simple\nextra-index-url =\n    https://two.corp/a\n    https://pypi.org/simple\n",
        );
        write(
            ".npmrc",
            "registry=http://npm.corp:4873/\n@acme:registry=https://npm.pkg.github.com\n//x/:_authToken=secret\n",
        );
        write(
            ".cargo/config.toml",
            "[source.crates-io]\nreplace-with = 'm'\n[source.m]\nregistry = 'sparse+https://cargo.corp/index/'\n",
        );
        write(".config/go/env", "GOPROXY=https://go.corp|https://other.corp,direct\n");
        write(
            "etc/apt/sources.list.d/a.sources",
            "Types: deb\nURIs: http://apt.corp/debian http://deb.debian.org/debian\n",
        );
        write(
            "etc/apt/sources.list",
            "# deb http://not.corp/ x\ndeb [arch=amd64] https://more.corp/ stable main\n",
        );
        let machine =
            Machine { variable: &|_| None, home: Some(folder.path()), root: folder.path() };
        assert_eq!(
            shown("pip", &machine),
            ["pip.corp!", "two.corp!", "pypi.org", "files.pythonhosted.org"]
        );
        assert_eq!(shown("npm", &machine), ["npm.corp:4873!", "npm.pkg.github.com!"]);
        assert_eq!(shown("cargo", &machine), ["cargo.corp!"]);
        assert_eq!(shown("go", &machine), ["go.corp!", "other.corp!"]);
        assert_eq!(shown("apt", &machine)[..3], ["more.corp!", "apt.corp!", "deb.debian.org"]);
        let variables = preset_variables("packages", &machine);
        let all: Vec<String> =
            variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
        // A password stays outside.
        assert!(!all.iter().any(|line| line.contains("u:p") || line.starts_with("PIP_INDEX_URL")));
        assert!(all.contains(&"npm_config_registry=http://npm.corp:4873/".to_owned()), "{all:?}");
        let set = |name: &str| (name == "PIP_INDEX_URL").then(|| "https://env.corp/x".to_owned());
        let machine = Machine { variable: &set, ..machine };
        assert_eq!(shown("pip", &machine)[0], "env.corp!");
    }
}
