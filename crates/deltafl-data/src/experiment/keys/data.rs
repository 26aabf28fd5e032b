//! The keys of `[data]`: where the examples come from, and who trains and tests.

use super::{Key, Kind, NON_NEGATIVE, UNIT, required, value, word, words};

pub(super) fn data_keys() -> Vec<Key> {
    use Kind::{PathOrTable, Real, Texts, Whole};
    vec![
        Key::new(
            "data.source",
            PathOrTable,
            required(),
            "A federation folder, relative to the folder in which the command runs; or a table that says what to make up.",
            "\"data/emnist\"",
        ),
        Key::new(
            "data.normalise",
            word(&["none", "mean-ratio", "standard"]),
            value("\"none\""),
            "How dense features are normalised, by the moments of the train devices: (x − mean)/mean, or (x − mean)/standard deviation.",
            "\"standard\"",
        ),
        Key::new(
            "data.evaluate_sample",
            Whole(1),
            words("all devices"),
            "Evaluates a fixed random sample of so many devices of each split.",
            "2000",
        ),
        Key::new(
            "data.split.train",
            Real(UNIT),
            value("0.5"),
            "With a table data.split the devices are split anew; without it they are split as stored. This share of them trains, the others test.",
            "0.8",
        ),
        Key::new(
            "data.split.validation",
            Real(UNIT),
            value("0.0"),
            "The share of the train devices that is held out.",
            "0.1",
        ),
        Key::new("data.split.seed", Whole(0), value("1"), "What the split derives from.", "7"),
        Key::new(
            "data.split.min_examples",
            Whole(0),
            value("0"),
            "A device is kept when it has more examples than this.",
            "50",
        ),
        Key::new(
            "data.split.sample",
            Real(UNIT),
            value("1.0"),
            "This share of the devices is kept, drawn at random; the paper keeps half of EMNIST's writers.",
            "0.5",
        ),
        Key::new(
            "data.split.within.train",
            Real(UNIT),
            value("0.9"),
            "With a table data.split.within the examples of each device are split, in place of the devices. This share of them trains, one at least.",
            "0.8",
        ),
        Key::new(
            "data.split.within.validation",
            Real(UNIT),
            value("0.0"),
            "The share of a device's examples that is held out for validation; the rest tests.",
            "0.1",
        ),
        Key::new("data.split.within.seed", Whole(0), value("1"), "What the split derives from.", "7"),
        Key::new(
            "data.split.within.min_examples",
            Whole(0),
            value("0"),
            "A device is kept when it has more examples than this.",
            "50",
        ),
        Key::new(
            "data.split.given.train",
            Texts,
            value("[]"),
            "With a table data.split.given devices are split as it lists them; a device that it does not list is left out. These train.",
            "[\"anna\", \"boris\"]",
        ),
        Key::new("data.split.given.test", Texts, value("[]"), "The devices that test.", "[\"clara\"]"),
        Key::new(
            "data.split.given.validation",
            Texts,
            value("[]"),
            "The devices that are held out for validation.",
            "[\"dora\"]",
        ),
    ]
}

pub(super) fn source_keys() -> Vec<Key> {
    use Kind::{Real, Whole};
    let odd = ["glyphs", "roles", "tweets"];
    vec![
        Key::new(
            "data.source.kind",
            word(&["glyphs", "logistic", "roles", "tweets"]),
            required(),
            "What is made up: handwriting, the synthetic(α, β) federation, characters of a play, messages.",
            "\"glyphs\"",
        ),
        Key::new(
            "data.source.devices",
            Whole(1),
            words("glyphs and tweets 400, roles 200, logistic 100"),
            "Number of devices.",
            "400",
        )
        .symbol("N"),
        Key::new("data.source.seed", Whole(0), value("1"), "What every draw derives from.", "7"),
        Key::new(
            "data.source.train",
            Real(UNIT),
            value("0.5"),
            "The share of the devices that trains; the others test.",
            "0.8",
        ),
        Key::new(
            "data.source.odd",
            Real(UNIT),
            words("glyphs 0.16, roles and tweets 0.15"),
            "The share of the devices that is unlike the others.",
            "0.3",
        )
        .only(&odd),
        Key::new(
            "data.source.alpha",
            Real(NON_NEGATIVE),
            value("1.0"),
            "Variance of the models' means.",
            "0.5",
        )
        .symbol("α")
        .only(&["logistic"]),
        Key::new(
            "data.source.beta",
            Real(NON_NEGATIVE),
            value("1.0"),
            "Variance of the inputs' means.",
            "0.5",
        )
        .symbol("β")
        .only(&["logistic"]),
        Key::new(
            "data.source.examples.min",
            Whole(1),
            words("by the kind"),
            "The fewest examples of a device; min, median and max are given together.",
            "20",
        ),
        Key::new(
            "data.source.examples.median",
            Whole(1),
            words("by the kind"),
            "The median over the devices.",
            "30",
        ),
        Key::new(
            "data.source.examples.max",
            Whole(1),
            words("by the kind"),
            "The most examples of a device.",
            "60",
        ),
    ]
}
