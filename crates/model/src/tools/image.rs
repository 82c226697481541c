//! `view_image`: shows the model a picture.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::Start;
use super::arguments::{ViewImageArgs, read};
use super::exec::is_class;
use crate::PosixPath;
use crate::error::{Error, ErrorClass, Result};
use crate::paths::{PathUse, SandboxWorkspaceScope, WorkspacePathPolicy};

/// The largest picture that is shown. Reading one byte more tells that it is too large.
pub const MAX_IMAGE_BYTES: usize = 10 * 1024 * 1024;

const OUTSIDE: &str = "path has to be in the workspace or below a path granted to it.";

/// How much of a file is searched for the beginning of an SVG.
const SVG_SNIFF_BYTES: usize = 2048;

/// The type of a picture, told by its content; only SVG is also believed by its name.
///
/// ```
/// use bastide_model::tools::detect_image_mime_type;
///
/// assert_eq!(detect_image_mime_type("x", b"GIF89a..."), Some("image/gif"));
/// assert_eq!(detect_image_mime_type("x.png", b"hello"), None);
/// ```
#[must_use]
pub fn detect_image_mime_type(path: &str, content: &[u8]) -> Option<&'static str> {
    const MAGIC: &[(&[u8], &str)] = &[
        (b"\x89PNG\r\n\x1a\n", "image/png"),
        (b"\xff\xd8\xff", "image/jpeg"),
        (b"GIF87a", "image/gif"),
        (b"GIF89a", "image/gif"),
        (b"BM", "image/bmp"),
        (b"II*\x00", "image/tiff"),
        (b"MM\x00*", "image/tiff"),
    ];
    let known = MAGIC.iter().find(|(magic, _)| content.starts_with(magic));
    if let Some((_, mime_type)) = known {
        return Some(mime_type);
    }
    if content.starts_with(b"RIFF") && content.get(8..12) == Some(b"WEBP") {
        return Some("image/webp");
    }
    let is_svg = looks_like_svg(content) || matches!(suffix(path).as_str(), ".svg" | ".svgz");
    is_svg.then_some("image/svg+xml")
}

fn looks_like_svg(content: &[u8]) -> bool {
    let head = &content[..content.len().min(SVG_SNIFF_BYTES)];
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c);
    let start = head.iter().position(|byte| !blank(byte)).unwrap_or(head.len());
    let head = head[start..].to_ascii_lowercase();
    head.starts_with(b"<svg")
        || (head.starts_with(b"<?xml") && head.windows(4).any(|window| window == b"<svg"))
}

/// The ending of the file's name in small letters, with its dot.
fn suffix(path: &str) -> String {
    let path = PosixPath::new(path);
    let name = path.names().next_back().unwrap_or_default();
    match name.rfind('.') {
        Some(dot) if dot > 0 && dot + 1 < name.len() => name[dot..].to_lowercase(),
        _ => String::new(),
    }
}

/// What `view_image` answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageAnswer {
    /// Why there is no picture.
    Text(String),
    /// The picture, as a `data:` URL.
    Image(String),
}

impl ImageAnswer {
    /// The picture as the structured output models are sent; text stays text.
    #[must_use]
    pub fn to_json(&self) -> Value {
        match self {
            Self::Text(text) => json!(text),
            Self::Image(url) => {
                json!({"type": "image", "image_url": url, "file_id": null, "detail": null})
            }
        }
    }
}

/// One use of `view_image`.
#[derive(Debug)]
pub struct ImageRun {
    path: PosixPath,
    shown: String,
}

impl ImageRun {
    /// Starts with what the model sent. Next, read at most [`MAX_IMAGE_BYTES`] and one more of
    /// [`path`](Self::path).
    ///
    /// # Errors
    /// The path cannot be told.
    pub fn start(
        raw: &str,
        policy: &WorkspacePathPolicy,
        scope: &SandboxWorkspaceScope,
    ) -> Result<Start<Self>> {
        let arguments: ViewImageArgs = match read(raw, &["path"]) {
            Ok(arguments) => arguments,
            Err(text) => return Ok(Start::Refuse(text)),
        };
        let anchored = PosixPath::new(&scope.anchor(&PosixPath::typed(&arguments.path)));
        let outside = |error: &Error| is_class(error, ErrorClass::InvalidManifestPathError);
        let path = match policy.normalize_path(&anchored, PathUse::Read) {
            Err(error) if outside(&error) => return Ok(Start::Refuse(OUTSIDE.to_owned())),
            path => path?,
        };
        // A path below a grant has no place in the workspace, and is shown as it is.
        let shown = match policy.relative_path(&anchored) {
            Err(error) if outside(&error) => path.to_string(),
            relative => scope.display_path(&anchored, &relative?)?.to_string(),
        };
        Ok(Start::Run(Self { path, shown }))
    }

    /// The file to read.
    #[must_use]
    pub fn path(&self) -> &PosixPath {
        &self.path
    }

    /// The answer after reading.
    #[must_use]
    pub fn answer(&self, content: Result<Vec<u8>>) -> ImageAnswer {
        let shown = &self.shown;
        let content = match content {
            Ok(content) => content,
            Err(error) if is_class(&error, ErrorClass::WorkspaceReadNotFoundError) => {
                return ImageAnswer::Text(format!("There is no image at `{shown}`."));
            }
            Err(error) => {
                let class = error.class().map_or_else(|| error.code(), ErrorClass::name);
                return ImageAnswer::Text(format!("Cannot read `{shown}`: {class}"));
            }
        };
        if content.len() > MAX_IMAGE_BYTES {
            let limit = MAX_IMAGE_BYTES / (1024 * 1024);
            let text = format!("`{shown}` is larger than {limit} MiB. Make it smaller to view it.");
            return ImageAnswer::Text(text);
        }
        match detect_image_mime_type(self.path.as_str(), &content) {
            Some(mime_type) => {
                let encoded = STANDARD.encode(&content);
                ImageAnswer::Image(format!("data:{mime_type};base64,{encoded}"))
            }
            None => ImageAnswer::Text(format!("`{shown}` is not an image of a known kind.")),
        }
    }
}
