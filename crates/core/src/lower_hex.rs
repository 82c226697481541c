//! Hexadecimal digits that mean one thing in one spelling: upper-case ones are none.

/// The bytes that a text spells, if they are as many.
pub(crate) fn decode<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    let is_lower = !text.bytes().any(|byte| byte.is_ascii_uppercase());
    (is_lower && hex::decode_to_slice(text, &mut bytes).is_ok()).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_each_value_in_one_spelling() {
        assert_eq!(decode("00ff"), Some([0, 255]));
        for bad in ["00FF", "00f", "00fff", "0x0f", "", "00 f", "\u{e9}00"] {
            assert_eq!(decode::<2>(bad), None, "{bad:?}");
        }
    }
}
