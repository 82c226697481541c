//! The little that is read and written of S3's XML. An element that is asked for has text in it and nothing else.

/// The texts of all elements of a name.
pub(crate) fn texts_of<'a>(xml: &'a str, name: &str) -> impl Iterator<Item = String> + use<'a> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let mut rest = xml;
    std::iter::from_fn(move || {
        let (_, after) = rest.split_once(&open)?;
        let (text, after) = after.split_once(&close)?;
        rest = after;
        Some(plain(text))
    })
}

/// The text of the first element of a name.
pub(crate) fn text_of(xml: &str, name: &str) -> Option<String> {
    texts_of(xml, name).next()
}

/// The end of an upload: which parts it has, by what the server said of each.
pub(crate) fn complete_upload(tags: &[String]) -> String {
    let part = |(at, tag): (usize, &String)| {
        let (number, tag) = (at + 1, escaped(tag));
        format!("<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>")
    };
    let parts: String = tags.iter().enumerate().map(part).collect();
    format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A text without references; one that nobody knows stays as it is.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('&') {
        out.push_str(before);
        let known = after.split_once(';').and_then(|(name, after)| Some((character(name)?, after)));
        match known {
            Some((character, after)) => {
                out.push(character);
                rest = after;
            }
            None => {
                out.push('&');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

fn character(name: &str) -> Option<char> {
    let number = |digits: &str, radix| char::from_u32(u32::from_str_radix(digits, radix).ok()?);
    match name {
        "amp" => Some('&'),
        "lt" => Some('<'),
        "gt" => Some('>'),
        "quot" => Some('"'),
        "apos" => Some('\''),
        _ => match name.strip_prefix("#x") {
            Some(digits) => number(digits, 16),
            None => number(name.strip_prefix('#')?, 10),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_texts_with_references() {
        let xml = "<r><Key>a &amp; &#x62;&#99; &no; &</Key><Other/><Key>d</Key><Key>cut";
        assert_eq!(texts_of(xml, "Key").collect::<Vec<_>>(), ["a & bc &no; &", "d"]);
        assert_eq!(text_of(xml, "Absent"), None);
    }

    #[test]
    fn what_is_written_is_read_back() {
        let xml = complete_upload(&["\"one\"".to_owned(), "<two>".to_owned()]);
        assert_eq!(texts_of(&xml, "ETag").collect::<Vec<_>>(), ["\"one\"", "<two>"]);
        assert_eq!(texts_of(&xml, "PartNumber").collect::<Vec<_>>(), ["1", "2"]);
    }
}
