//! Names in the code page of the first personal computers.

/// What the upper half of the code page means.
const UPPER_HALF: &str = "ÇüéâäàåçêëèïîìÄÅÉæÆôöòûùÿÖÜ¢£¥₧ƒáíóúñÑªº¿⌐¬½¼¡«»░▒▓│┤╡╢╖╕╣║╗╝╜╛┐└┴┬├─┼╞╟╚╔╩╦╠═╬╧╨╤╥╙╘╒╓╫╪┘┌█▄▌▐▀αßΓπΣσµτΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√ⁿ²■\u{a0}";

/// Decodes a name: UTF-8 if the archive says so, else the old code page.
pub(super) fn decode(bytes: &[u8], is_utf8: bool) -> Option<String> {
    if is_utf8 {
        return String::from_utf8(bytes.to_vec()).ok();
    }
    let upper = |byte: u8| UPPER_HALF.chars().nth(usize::from(byte) - 128);
    let letter = |byte: &u8| if byte.is_ascii() { Some(char::from(*byte)) } else { upper(*byte) };
    bytes.iter().map(letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_of_the_code_page_has_a_letter() {
        assert_eq!(UPPER_HALF.chars().count(), 128);
        assert_eq!(decode(&[b'a', 0x80, 0xe9, 0xff], false).as_deref(), Some("aÇΘ\u{a0}"));
        assert_eq!(decode(&[0xe9], true), None);
    }
}
