//! Okabe and Ito's colour-blind-safe palette. Lines also differ in their dashes.

use plotters::style::RGBColor;

/// The appearance of a track in all figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Look {
    pub(super) colour: RGBColor,
    /// Length of a dash and of a gap; `None` for a solid line.
    pub(super) dash: Option<(u32, u32)>,
}

/// The colour of the baseline.
pub(super) const GREY: RGBColor = RGBColor(0x6b, 0x6f, 0x73);

const COLOURS: [RGBColor; 6] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
];
const DASHES: [Option<(u32, u32)>; 6] =
    [None, Some((8, 4)), Some((2, 3)), Some((12, 4)), Some((5, 2)), Some((3, 6))];

/// Returns the look of the baseline (`None`), or of the i-th other track.
pub(super) fn look(place: Option<usize>) -> Look {
    match place {
        None => Look { colour: GREY, dash: None },
        // Each repetition of the colours has other dashes.
        Some(i) => {
            let dash = DASHES[(i + i / COLOURS.len()) % DASHES.len()];
            Look { colour: COLOURS[i % COLOURS.len()], dash }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tracks_of_the_same_colour_have_different_dashes() {
        let looks: Vec<Look> = (0..COLOURS.len() * DASHES.len()).map(|i| look(Some(i))).collect();
        for (i, look) in looks.iter().enumerate() {
            assert!(!looks[..i].contains(look), "{i}");
        }
    }
}
