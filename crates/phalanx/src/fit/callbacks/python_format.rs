//! Numbers as Python writes them: `repr` of a float, and the format specifications of `str.format`.

use serde_json::Value;

/// A number to be written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    Whole(i64),
    Real(f64),
}

/// A format specification: `[[fill]align][sign][#][0][width][,][.precision][type]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FormatSpec {
    fill: char,
    align: Option<char>,
    sign: char,
    alternate: bool,
    width: usize,
    group: Option<char>,
    precision: Option<usize>,
    kind: Option<char>,
}

/// The most digits or columns of a number: a path has no more.
const MOST: usize = 200;

/// The shortest text that is read back as this number, as Python's `repr` writes it.
pub(super) fn repr(value: f64) -> String {
    if !value.is_finite() {
        return special(value.abs(), value.is_sign_negative() && !value.is_nan());
    }
    let (digits, exponent) = shortest(value.abs());
    let sign = if value.is_sign_negative() { "-" } else { "" };
    let count = digits.len() as i32;
    match exponent {
        -4..0 => format!("{sign}0.{}{digits}", zeros(-exponent - 1)),
        0..16 if exponent + 1 >= count => {
            format!("{sign}{digits}{}.0", zeros(exponent + 1 - count))
        }
        0..16 => {
            let (whole, part) = digits.split_at(exponent as usize + 1);
            format!("{sign}{whole}.{part}")
        }
        _ => {
            let (first, rest) = digits.split_at(1);
            let point = if rest.is_empty() { "" } else { "." };
            with_long_exponent(&format!("{sign}{first}{point}{rest}e{exponent}"))
        }
    }
}

fn zeros(count: i32) -> String {
    "0".repeat(count.max(0) as usize)
}

/// The shortest digits that are read back as this number, and the exponent of the first. Of two that are as near the even one is
/// taken, which Rust's own formatting does not do.
fn shortest(value: f64) -> (String, i32) {
    let text = Value::from(value).to_string();
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let point = mantissa.find('.').unwrap_or(mantissa.len()) as i32;
    let all = mantissa.replace('.', "");
    let digits = all.trim_start_matches('0');
    let leading = (all.len() - digits.len()) as i32;
    match digits.trim_end_matches('0') {
        "" => ("0".to_owned(), 0),
        digits => (digits.to_owned(), point - leading - 1 + exponent),
    }
}

/// `1e-5` as `1e-05`.
fn with_long_exponent(digits: &str) -> String {
    let (mantissa, exponent) = digits.split_once('e').unwrap_or((digits, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

fn special(size: f64, is_negative: bool) -> String {
    let sign = if is_negative { "-" } else { "" };
    let name = if size.is_nan() { "nan" } else { "inf" };
    format!("{sign}{name}")
}

impl FormatSpec {
    /// Reads a specification, or says what is wrong with it.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut rest: Vec<char> = text.chars().collect();
        let is_align = |c: &char| "<>^=".contains(*c);
        let mut spec = Self {
            fill: ' ',
            align: None,
            sign: '-',
            alternate: false,
            width: 0,
            group: None,
            precision: None,
            kind: None,
        };
        if rest.get(1).is_some_and(is_align) {
            spec.fill = rest.remove(0);
            spec.align = Some(rest.remove(0));
        } else if rest.first().is_some_and(is_align) {
            spec.align = Some(rest.remove(0));
        }
        let mut take = |allowed: &str| {
            let found = rest.first().copied().filter(|c| allowed.contains(*c))?;
            rest.remove(0);
            Some(found)
        };
        spec.sign = take("+- ").unwrap_or('-');
        spec.alternate = take("#").is_some();
        if take("0").is_some() && spec.align.is_none() {
            (spec.fill, spec.align) = ('0', Some('='));
        }
        let number = |take: &mut dyn FnMut(&str) -> Option<char>| {
            let mut digits = String::new();
            while let Some(digit) = take("0123456789") {
                digits.push(digit);
            }
            digits
        };
        let width = number(&mut take);
        spec.group = take(",_");
        if take(".").is_some() {
            let digits = number(&mut take);
            let precision = digits.parse().map_err(|_| "a dot without digits")?;
            spec.precision = Some(precision);
        }
        spec.kind = take("dfFeEgG%");
        spec.width = match width.as_str() {
            "" => 0,
            digits => digits.parse().unwrap_or(usize::MAX),
        };
        if spec.width > MOST || spec.precision.is_some_and(|precision| precision > MOST) {
            return Err(format!("more than {MOST} digits"));
        }
        match rest.first() {
            Some(other) => Err(format!("`{other}`, which is not understood there")),
            None => Ok(spec),
        }
    }

    /// The number in this form, or why it has none.
    pub(super) fn write(&self, number: Number) -> Result<String, String> {
        let (is_negative, body) = match number {
            Number::Whole(value) if matches!(self.kind, None | Some('d')) => {
                if self.precision.is_some() {
                    return Err("a whole number has no precision".to_owned());
                }
                (value < 0, value.unsigned_abs().to_string())
            }
            Number::Real(_) if self.kind == Some('d') => {
                return Err("`d` is for whole numbers".to_owned());
            }
            Number::Whole(value) => (value < 0, self.real((value as f64).abs())),
            Number::Real(value) => (
                value.is_sign_negative() && !value.is_nan(),
                self.real(value.abs()),
            ),
        };
        let sign = match (is_negative, self.sign) {
            (true, _) => "-",
            (false, '+') => "+",
            (false, ' ') => " ",
            _ => "",
        };
        Ok(self.padded(sign, &self.grouped(&body)))
    }

    /// A number that is not negative.
    fn real(&self, value: f64) -> String {
        let percent = if self.kind == Some('%') { "%" } else { "" };
        if !value.is_finite() {
            let text = special(value, false) + percent;
            return match self.kind {
                Some('F' | 'E' | 'G') => text.to_uppercase(),
                _ => text,
            };
        }
        let precision = self.precision.unwrap_or(6);
        match self.kind {
            Some('f' | 'F' | 'd') => format!("{value:.precision$}"),
            Some('%') => format!("{:.precision$}%", value * 100.0),
            Some('e') => with_long_exponent(&format!("{value:.precision$e}")),
            Some('E') => with_long_exponent(&format!("{value:.precision$e}")).to_uppercase(),
            Some('g') => self.general(value, precision, false),
            Some('G') => self.general(value, precision, false).to_uppercase(),
            _ => match self.precision {
                None => repr(value),
                Some(precision) => self.general(value, precision, true),
            },
        }
    }

    /// So many digits in all, with an exponent where that is shorter.
    fn general(&self, value: f64, precision: usize, has_point: bool) -> String {
        let precision = precision.max(1);
        let digits = format!("{value:.*e}", precision - 1);
        let exponent = digits.split_once('e').map_or("0", |(_, exponent)| exponent);
        let exponent: i64 = exponent.parse().unwrap_or(0);
        let limit = precision as i64 - i64::from(has_point);
        if exponent >= -4 && exponent < limit {
            let decimals = (precision as i64 - 1 - exponent).max(0) as usize;
            let text = format!("{value:.decimals$}");
            let text = self.without_zeros(&text);
            let needs_point = has_point && !text.contains('.');
            return if needs_point { text + ".0" } else { text };
        }
        let (mantissa, exponent) = digits.split_once('e').unwrap_or((&digits, "0"));
        with_long_exponent(&format!("{}e{exponent}", self.without_zeros(mantissa)))
    }

    fn without_zeros(&self, text: &str) -> String {
        match text.contains('.') && !self.alternate {
            true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
            false => text.to_owned(),
        }
    }

    /// With a separator between thousands.
    fn grouped(&self, body: &str) -> String {
        let Some(separator) = self.group else {
            return body.to_owned();
        };
        let end = body.find(|c: char| !c.is_ascii_digit());
        let (whole, rest) = body.split_at(end.unwrap_or(body.len()));
        let mut text = String::new();
        for (index, digit) in whole.chars().enumerate() {
            if index > 0 && (whole.len() - index).is_multiple_of(3) {
                text.push(separator);
            }
            text.push(digit);
        }
        text + rest
    }

    fn padded(&self, sign: &str, body: &str) -> String {
        let length = sign.chars().count() + body.chars().count();
        let missing = self.width.saturating_sub(length);
        let fill = |count: usize| self.fill.to_string().repeat(count);
        match self.align {
            Some('<') => format!("{sign}{body}{}", fill(missing)),
            Some('^') => {
                let before = missing / 2;
                format!("{}{sign}{body}{}", fill(before), fill(missing - before))
            }
            Some('=') => format!("{sign}{}{body}", fill(missing)),
            _ => format!("{}{sign}{body}", fill(missing)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pairs of CPython 3.11.
    const REALS: [(&str, f64, &str); 33] = [
        ("", 0.1, "0.1"),
        ("", 3.0, "3.0"),
        ("", 1e-5, "1e-05"),
        ("", 1e16, "1e+16"),
        ("", 123_456_789.0, "123456789.0"),
        ("", 0.723_731_994_628_906_2, "0.7237319946289062"),
        ("", -0.001_25, "-0.00125"),
        ("", -1.5e300, "-1.5e+300"),
        ("", 12.5, "12.5"),
        ("", 1e15, "1000000000000000.0"),
        ("", 0.0, "0.0"),
        ("", -0.0, "-0.0"),
        ("", 5e-324, "5e-324"),
        ("", f64::NAN, "nan"),
        (".2f", 0.125, "0.12"),
        (".2f", 0.375, "0.38"),
        (".2f", f64::NAN, "nan"),
        ("06.2f", -1.5, "-01.50"),
        ("08.2f", f64::INFINITY, "00000inf"),
        (".3e", 0.000_123_456, "1.235e-04"),
        (".0e", 1234.0, "1e+03"),
        ("g", 1_234_567.0, "1.23457e+06"),
        ("g", 0.0001, "0.0001"),
        ("g", 0.00001, "1e-05"),
        (".3g", 2.0, "2"),
        (".3", 2.0, "2.0"),
        (".3", 1234.5, "1.23e+03"),
        (".1%", 0.256, "25.6%"),
        ("+.1f", 2.0, "+2.0"),
        (" .1f", 2.0, " 2.0"),
        ("*^9.2f", 1.0, "**1.00***"),
        ("<7.1f", 1.0, "1.0    "),
        (",.1f", 1_234_567.0, "1,234,567.0"),
    ];

    #[test]
    fn numbers_are_written_as_python_does() {
        for (spec, value, expected) in REALS {
            let written = FormatSpec::parse(spec).unwrap().write(Number::Real(value));
            assert_eq!(written.as_deref(), Ok(expected), "{spec} of {value}");
        }
        let wholes = [
            ("", 7, "7"),
            ("02d", 7, "07"),
            ("03", -7, "-07"),
            (">4d", 7, "   7"),
            (".1f", 7, "7.0"),
            (",", 1234, "1,234"),
        ];
        for (spec, value, expected) in wholes {
            let written = FormatSpec::parse(spec).unwrap().write(Number::Whole(value));
            assert_eq!(written.as_deref(), Ok(expected), "{spec} of {value}");
        }
        assert!(
            FormatSpec::parse("d")
                .unwrap()
                .write(Number::Real(1.0))
                .is_err()
        );
        for wrong in ["x", ".f", "02q", "999", ".999f"] {
            assert!(FormatSpec::parse(wrong).is_err(), "{wrong}");
        }
    }
}
