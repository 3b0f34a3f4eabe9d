"""What an island can be: every template with its capacity rows.

Import: ``catalogue.build_catalogue`` for all of them, ``template.Template`` for the type.
Never: decide how many islands of a template there are.
"""
