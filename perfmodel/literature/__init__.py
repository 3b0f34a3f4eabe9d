"""Models of times from the literature: shallowsim, BestServe, Xiong et al., measured tables.

Import: the class of the model.
Never: be imported by the roofline; they stand beside it.
"""
