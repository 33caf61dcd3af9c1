# SPDX-License-Identifier: MIT
"""Go's text/template, as far as Ollama's TEMPLATEs use it.

    template = Template.parse("{{ range .Messages }}<{{ .Role }}>{{ .Content }}{{ end }}")
    text = template.render(TemplateInput(messages))

`lex` and `parse` read, `evaluate` runs within limits, `ollama` feeds a conversation in the way Ollama does.
Written from the rules of golang/go: src/text/template; complex numbers, methods and function values are
missing, because no template can get hold of one.
"""
