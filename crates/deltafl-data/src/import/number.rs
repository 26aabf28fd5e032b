//! Fast and correctly rounded parsing of decimal numbers.
//!
//! A number d·10^e with d < 2^64 is computed in `f64` with two roundings, so its relative error is
//! below 2^-51. If all real numbers in this range round to the same `f32`, this is the result.
//! Otherwise, about once in 10^7 numbers, the standard library parses the number.

/// Returns the number at the start of `bytes` by JSON's grammar, and its length; `None` if there is
/// no number.
///
/// The caller ensures that the number ends in `bytes`.
pub(crate) fn json_f32(bytes: &[u8]) -> Option<(f32, usize)> {
    let scan = Scan::parse(bytes)?;
    let number = scan.fast().or_else(|| slow(&bytes[..scan.len]))?;
    Some((number, scan.len))
}

/// The digits of a number.
struct Scan {
    negative: bool,
    /// All digits as one integer, unless there are more than 19.
    digits: u64,
    too_many: bool,
    exponent: i32,
    len: usize,
}

impl Scan {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let negative = bytes.first() == Some(&b'-');
        let start = usize::from(negative);
        let (mut digits, mut at) = (0, start);
        eat_digits(bytes, &mut at, &mut digits);
        let whole = at - start;
        if whole == 0 || (whole > 1 && bytes[start] == b'0') {
            return None;
        }
        let mut fraction = 0;
        if bytes.get(at) == Some(&b'.') {
            at += 1;
            let first = at;
            eat_digits(bytes, &mut at, &mut digits);
            fraction = at - first;
            if fraction == 0 {
                return None;
            }
        }
        // Leading zeros do not count towards the 19 digits that fit.
        let leading = if bytes[start] == b'0' {
            1 + bytes[start..at].iter().skip(2).take_while(|&&b| b == b'0').count()
        } else {
            0
        };
        let too_many = whole + fraction - leading.min(whole + fraction) > 19;
        let mut exponent = -(i32::try_from(fraction).ok()?);
        if let Some(b'e' | b'E') = bytes.get(at) {
            exponent = exponent.saturating_add(eat_exponent(bytes, &mut at)?);
        }
        Some(Self { negative, digits, too_many, exponent, len: at })
    }

    fn fast(&self) -> Option<f32> {
        if self.too_many || self.exponent.unsigned_abs() > 22 {
            return None;
        }
        let power = POWERS_OF_TEN[self.exponent.unsigned_abs() as usize];
        let digits = self.digits as f64;
        let magnitude = if self.exponent < 0 { digits / power } else { digits * power };
        const MARGIN: f64 = 1.0 / (1u64 << 51) as f64;
        let (low, high) = ((magnitude * (1.0 - MARGIN)) as f32, (magnitude * (1.0 + MARGIN)) as f32);
        let settled = low.to_bits() == high.to_bits() && high.is_finite();
        settled.then_some(if self.negative { -high } else { high })
    }
}

/// Appends the digits from `at` to the number, modulo 2^64.
#[inline]
fn eat_digits(bytes: &[u8], at: &mut usize, number: &mut u64) {
    while let Some(eight) = bytes.get(*at..*at + 8) {
        let Some(value) = eight_digits(eight) else { break };
        *number = number.wrapping_mul(100_000_000).wrapping_add(value);
        *at += 8;
    }
    while let Some(digit) = bytes.get(*at).map(|b| b.wrapping_sub(b'0')).filter(|&d| d < 10) {
        *number = number.wrapping_mul(10).wrapping_add(u64::from(digit));
        *at += 1;
    }
}

/// Parses eight bytes as a number of eight digits: pairs, then fours, then all, with one
/// multiplication each.
#[inline]
fn eight_digits(bytes: &[u8]) -> Option<u64> {
    let word = u64::from_le_bytes(bytes.try_into().ok()?);
    let high_nibbles = word & 0xf0f0_f0f0_f0f0_f0f0;
    let above_nine = word.wrapping_add(0x0606_0606_0606_0606) & 0xf0f0_f0f0_f0f0_f0f0;
    if high_nibbles != 0x3030_3030_3030_3030 || above_nine != 0x3030_3030_3030_3030 {
        return None;
    }
    let digits = word & 0x0f0f_0f0f_0f0f_0f0f;
    let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8) & 0x00ff_00ff_00ff_00ff;
    let fours = pairs.wrapping_mul(100).wrapping_add(pairs >> 16) & 0x0000_ffff_0000_ffff;
    Some(fours.wrapping_mul(10_000).wrapping_add(fours >> 32) & 0xffff_ffff)
}

fn eat_exponent(bytes: &[u8], at: &mut usize) -> Option<i32> {
    *at += 1;
    let negative = match bytes.get(*at) {
        Some(b'-') => {
            *at += 1;
            true
        }
        Some(b'+') => {
            *at += 1;
            false
        }
        _ => false,
    };
    let first = *at;
    let mut exponent = 0i32;
    while let Some(digit) = bytes.get(*at).filter(|b| b.is_ascii_digit()) {
        exponent = exponent.saturating_mul(10).saturating_add(i32::from(digit - b'0'));
        *at += 1;
    }
    (*at > first).then_some(if negative { -exponent } else { exponent })
}

fn slow(bytes: &[u8]) -> Option<f32> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

/// 10^0 … 10^22, all exact in `f64`.
const POWERS_OF_TEN: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18,
    1e19, 1e20, 1e21, 1e22,
];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn agrees(text: &str) {
        let (got, len) = json_f32(text.as_bytes()).unwrap();
        assert_eq!((got.to_bits(), len), (text.parse::<f32>().unwrap().to_bits(), text.len()), "{text}");
    }

    #[test]
    fn numbers_of_every_shape_agree_with_the_standard_library() {
        let plain = ["0", "-0", "1", "0.5", "123456789.125", "1e3", "1E-3", "2.5e+2", "0.00392156862745098"];
        let long = ["0.99215686274509806", "12345678901234567890123", "0.000000000000000000000000000001"];
        let hard = ["16777217", "1.00000005960464477539", "3.4028235677973366e38", "1e-46", "1e400", "7e-46"];
        plain.into_iter().chain(long).chain(hard).for_each(agrees);
    }

    #[test]
    fn what_json_does_not_allow_is_no_number() {
        for text in ["", "-", "01", "1.", ".5", "1e", "1e+", "NaN", "-Infinity", "+1", "x"] {
            assert_eq!(json_f32(text.as_bytes()), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_f64_in_decimal_agrees(x in proptest::num::f64::NORMAL) {
            agrees(&format!("{x:?}"));
        }

        #[test]
        fn any_fraction_agrees(x in 0.0f64..1.0) {
            agrees(&format!("{x}"));
        }

        #[test]
        fn halfway_between_two_floats_agrees(bits in 0x3000_0000u32..0x4f00_0000) {
            let (low, high) = (f64::from(f32::from_bits(bits)), f64::from(f32::from_bits(bits + 1)));
            agrees(&format!("{}", (low + high) / 2.0));
        }
    }
}
