//! The layers of a stack in an experiment file.

use std::ops::Range;

use deltafl::model::stack::{LAYERS, Layer, LayerDefinition};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{Entry, InvalidExperiment, OptionTable};

/// Removes the key `layers` of a section.
pub(super) fn remove<'de>(section: &mut Spanned<DeValue<'de>>) -> Option<Spanned<DeValue<'de>>> {
    match section.get_mut() {
        DeValue::Table(table) => table.remove("layers"),
        _ => None,
    }
}

/// Returns the place of the first element of a list, or of the whole value.
pub(super) fn first_span(value: &Spanned<DeValue<'_>>) -> Range<usize> {
    match value.get_ref() {
        DeValue::Array(values) => values.first().map_or_else(|| value.span(), layer_place),
        _ => value.span(),
    }
}

/// Returns the place of a layer: the value of its kind, because the table may contain other tables.
fn layer_place(layer: &Spanned<DeValue<'_>>) -> Range<usize> {
    let kind = layer.get_ref().as_table().and_then(|table| table.get("kind"));
    kind.map_or_else(|| layer.span(), Spanned::span)
}

/// The layers of a stack or of a residual.
pub(super) fn read(value: Spanned<DeValue<'_>>) -> Result<Vec<Layer>, InvalidExperiment> {
    let span = value.span();
    let DeValue::Array(values) = value.into_inner() else {
        return Err(InvalidExperiment::new("layers: expected a list of tables", span));
    };
    values.into_iter().map(layer).collect()
}

fn layer(mut section: Spanned<DeValue<'_>>) -> Result<Layer, InvalidExperiment> {
    let place = layer_place(&section);
    let inner = remove(&mut section).map(read).transpose()?.unwrap_or_default();
    let known: Vec<Entry> = LAYERS.iter().map(|layer| (layer.kind, layer.options)).collect();
    let table = OptionTable::read(section, "layer", &known, &[])?;
    let definition: &'static LayerDefinition = &LAYERS[table.entry];
    let table = OptionTable { span: place, ..table };
    let given = table.given.iter().flat_map(|(option, _, values)| values.iter().map(|v| (option.name, *v)));
    definition.layer(given.collect::<Vec<_>>(), inner).map_err(|error| table.locate(error))
}

/// Returns the place in the text of a layer of the model, by its position and its positions inside
/// residuals, counted from 0.
pub fn layer_span(text: &str, path: &[usize]) -> Option<Range<usize>> {
    let table = DeTable::parse(text).ok()?;
    let mut value = table.get_ref().get("model")?;
    for &i in path {
        let layers = value.get_ref().as_table()?.get("layers")?;
        value = layers.get_ref().as_array()?.get(i)?;
    }
    Some(layer_place(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Experiment;

    const HEAD: &str = "name = 'a'\nrounds = 3\ncohort = 5\ndata = { source = 'd' }\n[model]\nkind = 'linear'\n\
                        [local]\nepochs = 1\nbatch = 10\nlearning_rate = 0.5\n";

    fn error(text: &str) -> (usize, String) {
        let error = Experiment::parse(text).unwrap_err();
        (error.line(text), error.message)
    }

    #[test]
    fn layers_are_read_and_an_error_is_at_the_line_of_its_layer() {
        let text = |layers: &str| {
            HEAD.replace("kind = 'linear'\n", &format!("{layers}\n")) + "[[algorithm]]\nkind = 'fedavg'\n"
        };
        let written = text(
            "[[model.layers]]\nkind = 'dense'\nunits = 9\n[[model.layers]]\nkind = 'residual'\n\
             [[model.layers.layers]]\nkind = 'relu'\n[[model.layers]]\nkind = 'dropout'\nrate = 0.1",
        );
        let inline = text(
            "kind = 'stack'\nlayers = [{ kind = 'dense', units = 9 },\n\
             { kind = 'residual', layers = [{ kind = 'relu' }] }, { kind = 'dropout', rate = 0.1 }]",
        );
        let [written_out, read] = [&written, &inline].map(|text| Experiment::parse(text).unwrap());
        assert_eq!(written_out, read);
        assert_eq!(read.model().spec().layers().len(), 3);
        assert_eq!(Experiment::parse(&read.to_toml()).unwrap(), read);
        assert_ne!(read.address(), Experiment::parse(&inline.replace("9", "8")).unwrap().address());
        let line = |text: &str, path: &[usize]| {
            let span = layer_span(text, path).unwrap();
            1 + text[..span.start].matches('\n').count()
        };
        assert_eq!(
            [vec![0], vec![1], vec![1, 0], vec![2]].map(|path| line(&written, &path)),
            [7, 10, 12, 14]
        );
        assert_eq!([vec![0], vec![1], vec![1, 0], vec![2]].map(|path| line(&inline, &path)), [7, 8, 8, 8]);
        for (layers, place, reason) in [
            ("[[model.layers]]\nkind = 'dens'", 7, "unknown layer: expected one of dense, conv2d"),
            ("[[model.layers]]\nkind = 'dense'", 7, "units: dense needs it: a whole number, 1 or above"),
            ("[[model.layers]]\nkind = 'dense'\nunits = 0", 8, "units: expected a whole number"),
            ("[[model.layers]]\nkind = 'relu'\nl2 = 1", 8, "relu has no option l2; expected one of `kind`"),
            ("[[model.layers]]\nkind = 'residual'", 7, "layers: a residual needs at least one layer"),
            ("kind = 'linear'\n[[model.layers]]\nkind = 'relu'", 8, "linear has no layers"),
            ("kind = 'stack'\nlayers = 3", 7, "layers: expected a list of tables"),
        ] {
            let (line, message) = error(&text(layers));
            assert!(message.starts_with(reason), "{layers}: {message}");
            assert_eq!(line, place, "{layers}: {message}");
        }
    }
}
